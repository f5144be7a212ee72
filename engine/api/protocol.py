"""What a client may send: the request models of /v1/completions and /v1/chat/completions.

Strict as `engine/api/strict.py` says. The ranges of sampling parameters are those of SamplingParams, which checks them;
they are written here too where they are plain numbers, for the description of the API (a test holds them together).
`user`, `metadata` and `safety_identifier` only identify the client; they change nothing.
Source: the OpenAI API reference; vLLM for `top_k` and what follows it.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from engine.api.answer_format import AnswerFormat
from engine.api.errors import shortened
from engine.api.strict import Strict
from engine.api.tools import ToolCall, Tools, ToolUse
from reference.serving.request import MAX_PRIORITY, MAX_TOP_LOGPROBS

MAX_SAMPLES = 128  # of one prompt
MAX_STOP_STRINGS = 16
MAX_CHOICES = 2048  # of one call: prompts times samples
MAX_METADATA = 16  # pairs, as OpenAI takes them
MAX_BIAS = 100
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,17}")

# Which ids a model has is known to its engine, which checks them.
TokenId = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0})]
Text = Annotated[str, Field(min_length=1)]
LogitBias = Annotated[
    dict[str, Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]],
    Field(json_schema_extra={"propertyNames": {"pattern": f"^({_TOKEN_ID.pattern})$"}}),
]
Ids = Annotated[list[TokenId], Field(min_length=1)]

# Parameters that are not supported, with the values that ask for nothing.
NOT_IN_EITHER: dict[str, tuple[Any, ...]] = {
    "bad_words": ([],),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}
NOT_IN_COMPLETIONS = {**NOT_IN_EITHER, "best_of": (1,), "suffix": ("",)}
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
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": (),
    "web_search_options": (),
}
# Clients send an assistant's message back as they got it, empty fields included.
NOT_IN_MESSAGE: dict[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
}


class StreamOptions(Strict):
    unsupported: ClassVar = {"include_obfuscation": (False,)}

    include_usage: bool = False  # one more event at the end, with the counts
    continuous_usage_stats: bool = False  # the counts so far in every event


class GenerationRequest(AnswerFormat):
    """What both endpoints share. A sampling parameter that is absent takes the checkpoint's default."""

    model: str | None = None  # the served one if absent
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, str] | None = Field(None, max_length=MAX_METADATA)

    max_tokens: int | None = Field(None, ge=1)
    n: int = Field(1, ge=1, le=MAX_SAMPLES)
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: dict[int, float] = Field(default_factory=dict)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: list[str] = Field(default_factory=list, max_length=MAX_STOP_STRINGS)

    top_k: int | None = Field(None, ge=-1)  # -1 and 0 keep all
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0)
    min_tokens: int = Field(0, ge=0)
    stop_token_ids: list[TokenId] = Field(default_factory=list)
    allowed_token_ids: list[TokenId] | None = Field(None, min_length=1)
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    priority: int = Field(0, ge=-MAX_PRIORITY, le=MAX_PRIORITY)  # lower is more urgent

    @property
    def num_choices(self) -> int:
        """How many samples are asked for."""
        return self.n

    @field_validator(
        "stop", mode="before", json_schema_input_type=Text | Annotated[list[Text], Field(max_length=MAX_STOP_STRINGS)]
    )
    @classmethod
    def _one_stop_string(cls, stop: Any) -> Any:
        return [stop] if isinstance(stop, str) else stop

    @field_validator("logit_bias", mode="plain", json_schema_input_type=LogitBias)
    @classmethod
    def _by_token_id(cls, bias: Any) -> dict[int, float]:
        if not isinstance(bias, dict):
            raise ValueError("expected an object of token ids and their biases")
        for key, value in bias.items():
            if not _TOKEN_ID.fullmatch(key):
                raise ValueError(f"{shortened(key)!r} is not a token id")
            if type(value) not in (int, float) or not -MAX_BIAS <= value <= MAX_BIAS:
                raise ValueError(f"the bias of token {key} must be a number in [-{MAX_BIAS}, {MAX_BIAS}]")
        return {int(key): float(value) for key, value in bias.items()}

    @field_validator("metadata", mode="before")
    @classmethod
    def _few_pairs(cls, metadata: Any) -> Any:
        if isinstance(metadata, dict) and len(metadata) > MAX_METADATA:
            raise ValueError(f"there are {len(metadata)} pairs; there may be {MAX_METADATA}")
        return metadata

    @model_validator(mode="after")
    def _options_of_a_stream(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise PydanticCustomError("parameter", "needs stream to be true", {"name": "stream_options"})
        if self.prompt_logprobs is not None and self.stream:
            raise PydanticCustomError("parameter", "needs stream to be false", {"name": "prompt_logprobs"})
        return self


class CompletionRequest(GenerationRequest):
    """A request to /v1/completions."""

    unsupported = NOT_IN_COMPLETIONS

    prompt: list[str | list[int]]
    max_tokens: int | None = Field(16, ge=1)
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)

    @property
    def num_choices(self) -> int:
        return len(self.prompt) * self.n

    @field_validator(
        "prompt", mode="plain", json_schema_input_type=Text | Ids | Annotated[list[Text | Ids], Field(min_length=1)]
    )
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
        if len(self.prompt) > 1 and self.num_choices > MAX_CHOICES:
            message = f"holds {len(self.prompt)}, and n is {self.n}; a call may ask for {MAX_CHOICES} choices"
            raise PydanticCustomError("parameter", message, {"name": "prompt"})
        return self


class TextPart(Strict):
    type: Literal["text"]
    text: str


class ChatMessage(Strict):
    """One turn. `developer` is OpenAI's newer name of `system`, and means that. A `tool` message answers a call."""

    unsupported = NOT_IN_MESSAGE
    instead: ClassVar = {"function_call": "tool_calls"}

    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: list[ToolCall] = Field(default_factory=list)  # of an assistant
    reasoning_content: str | None = None  # of an assistant: the thought before its answer
    reasoning: str | None = None  # the same
    tool_call_id: str | None = None  # of a tool's answer: the call
    name: str | None = None  # of who speaks; the template decides whether the model is told
    content: list[TextPart] = Field(default_factory=list)
    parsed: Any = Field(None, exclude=True)  # what the openai package made of the content

    @field_validator("content", mode="before", json_schema_input_type=str | list[TextPart])
    @classmethod
    def _one_part(cls, content: Any) -> Any:
        if not isinstance(content, str | list):
            raise ValueError("expected a string or a list of text parts")
        return [{"type": "text", "text": content}] if isinstance(content, str) else content

    @model_validator(mode="after")
    def _only_assistants_are_silent(self) -> ChatMessage:
        if self.role != "assistant" and "content" not in self.model_fields_set:
            raise PydanticCustomError("parameter", "is missing", {"name": "content"})
        if self.role == "tool" and self.tool_call_id is None:
            raise PydanticCustomError("parameter", "is missing", {"name": "tool_call_id"})
        of_assistants = dict.fromkeys(("tool_calls", "reasoning_content", "reasoning"), "assistant")
        for name, role in (of_assistants | {"tool_call_id": "tool"}).items():
            if role != self.role and getattr(self, name):
                message = f"belongs to messages of the role {role}, not {self.role}"
                raise PydanticCustomError("parameter", "{message}", {"name": name, "message": message})
        return self


class Conversation(Tools):
    """What makes the prompt of a chat."""

    messages: list[ChatMessage] = Field(min_length=1, fail_fast=True)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)


class ChatRequest(GenerationRequest, ToolUse, Conversation):
    """A request to /v1/chat/completions."""

    unsupported = NOT_IN_CHAT
    instead: ClassVar = {"functions": "tools", "function_call": "tool_choice"}

    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    separate_reasoning: bool = True  # if not, a thought stays in the content, tags and all

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise PydanticCustomError("parameter", "needs logprobs to be true", {"name": "top_logprobs"})
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            message = "and its older name max_tokens are both given; give one"
            raise PydanticCustomError("parameter", message, {"name": "max_completion_tokens"})
        if self.offered and (formats := list(self.asked())):
            message = "cannot be given beside tools; give one, or tool_choice none"
            raise PydanticCustomError("parameter", message, {"name": formats[0]})
        return self


def _are_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(token_id) is int for token_id in prompt)
