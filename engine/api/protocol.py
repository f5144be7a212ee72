"""What a client may send: the request models of /v1/completions and /v1/chat/completions.

Types are strict ("1" is no number, true is no integer), a null is as good as absent, and a field that is not declared
is refused. A parameter that OpenAI's API or vLLM has and this server does not is refused by name, unless its value asks
for nothing (`tool_choice: "none"`). The ranges of sampling parameters are those of SamplingParams, which checks them.
`user`, `metadata` and `safety_identifier` only identify the client; they change nothing.
Source: the OpenAI API reference; vLLM for `top_k` and what follows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

MAX_STOP_STRINGS = 16
MAX_CHOICES = 2048  # of one call: prompts times samples
_TOKEN_ID = re.compile("[0-9]{1,18}")

# Parameters that are not supported, with the values that ask for nothing.
NOT_IN_EITHER: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "priority": (0,),
    "prompt_logprobs": (),
    "structured_outputs": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
NOT_IN_COMPLETIONS = {**NOT_IN_EITHER, "best_of": (1,), "response_format": ({"type": "text"},), "suffix": ("",)}
NOT_IN_CHAT = {
    **NOT_IN_EITHER,
    "add_generation_prompt": (True,),
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (),
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none",),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
# Clients send an assistant's message back as they got it, empty fields included.
NOT_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "reasoning": (),
    "reasoning_content": (),
    "refusal": (),
    "tool_call_id": (),
    "tool_calls": ([],),
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        given = {name: value for name, value in raw.items() if value is not None}
        for name in [name for name in given if name in cls.unsupported]:
            if given.pop(name) not in cls.unsupported[name]:
                raise PydanticCustomError("unsupported", "is not supported", {"name": name})
        return given


class StreamOptions(_Strict):
    unsupported = {"include_obfuscation": (False,)}

    include_usage: bool = False  # one more event at the end, with the counts
    continuous_usage_stats: bool = False  # the counts so far in every event


class GenerationRequest(_Strict):
    """What both endpoints share. A sampling parameter that is absent takes the checkpoint's default."""

    model: str | None = None  # the served one if absent
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = None

    max_tokens: int | None = None
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = Field(default_factory=dict)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: list[str] = Field(default_factory=list, max_length=MAX_STOP_STRINGS)

    top_k: int | None = Field(None, ge=-1)  # -1 and 0 keep all
    min_p: float = 0.0
    repetition_penalty: float | None = None
    min_tokens: int = 0
    stop_token_ids: list[int] = Field(default_factory=list)
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop_string(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _token_ids(cls, bias: Any) -> Any:
        if not isinstance(bias, dict):
            return bias
        if wrong := [key for key in bias if not _TOKEN_ID.fullmatch(key)]:
            raise ValueError(f"{wrong[0]!r} is not a token id")
        return {int(key): value for key, value in bias.items()}

    @model_validator(mode="after")
    def _options_of_a_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("parameter", "needs stream to be true", {"name": "stream_options"})
        return self


class CompletionRequest(GenerationRequest):
    """A request to /v1/completions."""

    unsupported = NOT_IN_COMPLETIONS

    prompt: list[str | list[int]]
    max_tokens: int | None = 16
    echo: bool = False
    logprobs: int | None = None

    @field_validator("prompt", mode="plain")
    @classmethod
    def _prompts(cls, prompt: Any) -> list[str | list[int]]:
        """A string, a list of strings, a list of ids or a list of lists of ids, as a list of prompts."""
        if isinstance(prompt, str):
            return [prompt]
        prompts = [prompt] if _are_ids(prompt) else prompt
        if not isinstance(prompts, list) or not all(isinstance(one, str) or _are_ids(one) for one in prompts):
            raise ValueError("expected a string, a list of strings, a list of token ids or a list of such lists")
        if not prompts:
            raise ValueError("the list is empty: there is nothing to complete")
        return prompts

    @model_validator(mode="after")
    def _not_too_many(self) -> CompletionRequest:
        if len(self.prompt) > 1 and len(self.prompt) * self.n > MAX_CHOICES:
            message = f"holds {len(self.prompt)}, and n is {self.n}; a call may ask for {MAX_CHOICES} choices"
            raise PydanticCustomError("parameter", message, {"name": "prompt"})
        return self


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class ChatMessage(_Strict):
    """One turn. `developer` is OpenAI's newer name of `system`, and means that."""

    unsupported = NOT_IN_MESSAGE

    role: Literal["system", "developer", "user", "assistant"]
    content: list[TextPart] = Field(default_factory=list)

    @field_validator("content", mode="before")
    @classmethod
    def _one_part(cls, content: Any) -> Any:
        if not isinstance(content, str | list):
            raise ValueError("expected a string or a list of text parts")
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    @model_validator(mode="after")
    def _only_assistants_are_silent(self) -> ChatMessage:
        if self.role != "assistant" and "content" not in self.model_fields_set:
            raise PydanticCustomError("parameter", "is missing", {"name": "content"})
        return self


class ChatRequest(GenerationRequest):
    """A request to /v1/chat/completions."""

    unsupported = NOT_IN_CHAT

    messages: list[ChatMessage] = Field(min_length=1, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("parameter", "needs logprobs to be true", {"name": "top_logprobs"})
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            message = "and its older name max_tokens are both given; give one"
            raise PydanticCustomError("parameter", message, {"name": "max_completion_tokens"})
        return self


def _are_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(token_id) is int for token_id in prompt)
