"""What the server answers, for the description of the API: the shapes that tests hold the answers to.

The answers themselves are made where they are known (`completions.py`, `chat.py`, `models.py`, ...).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from reference.serving.request import FinishReason

EndReason = Literal[FinishReason.STOP, FinishReason.LENGTH]


class Response(BaseModel):
    """The base: nothing else is in an answer."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(Response):
    message: str
    type: Literal["invalid_request_error", "server_error", "requests"]
    param: str | None  # which parameter is wrong
    code: str | None


class Error(Response):
    error: ErrorDetail


class CompletionTokensDetails(Response):
    reasoning_tokens: int


class Usage(Response):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails = CompletionTokensDetails(reasoning_tokens=0)  # if it may think


class CompletionLogprobs(Response):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(Response):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CompletionChoice(Response):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: EndReason | None
    stop_reason: int | str | None
    prompt_logprobs: PromptLogprobs = Field(default_factory=list)  # there if asked for


class Completion(Response):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class TopLogprob(Response):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Response):
    content: list[TokenLogprob]
    refusal: None


class CalledFunction(Response):
    name: str
    arguments: str


class ToolCall(Response):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Response):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""  # there if the model thought
    tool_calls: list[ToolCall] = Field(default_factory=list)  # there if it called tools


class ChatChoice(Response):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: EndReason | Literal["tool_calls"]
    stop_reason: int | str | None


class ChatCompletion(Response):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs = Field(default_factory=list)  # there if asked for


class Model(Response):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["diptych"]
    max_model_len: int


class ModelList(Response):
    object: Literal["list"]
    data: list[Model]


class Tokenized(Response):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Response):
    prompt: str


class HealthStatus(Response):
    status: Literal["ok", "stopping", "failed"]
    seconds: float = 0.0  # that a token took, if asked for
    reason: str = ""  # why there is none


class Version(Response):
    version: str


class Description(Response):
    """An OpenAPI document."""

    model_config = ConfigDict(extra="allow")

    openapi: str
    info: dict[str, JsonValue]
    paths: dict[str, Any]
