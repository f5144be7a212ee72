"""/v1/chat/completions: the next turn of a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from engine.api.answer import Answer
from engine.api.answer_format import constraint_of
from engine.api.logprobs import chat_logprobs
from engine.api.protocol import ChatRequest, Conversation
from engine.api.served import ServedModel
from engine.api.thinking import after_thought
from reference.serving.request import RequestError, RequestOutput


@dataclass
class ChatAnswer(Answer):
    """The checkpoint's chat template makes the prompt; without a limit the answer may go to the end of the context."""

    id_prefix = "chatcmpl"
    kind, chunk_kind = "chat.completion", "chat.completion.chunk"
    renamed: ClassVar = {"prompt_token_ids": "messages"}

    body: ChatRequest
    _begun: set[int] = field(default_factory=set)  # choices that have put something out

    @classmethod
    def prepare(cls, served: ServedModel, body: ChatRequest) -> ChatAnswer:
        """Errors: RequestError."""
        prompt, constraint = prompt_of(served, body), constraint_of(served.grammars, body)
        params = served.sampling_params(
            body,
            max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            constraint=None if constraint is None else after_thought(served, prompt, constraint),
        )
        return cls(served, body, [prompt], params)

    def choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        return self._choice(index, output, {"message": {"role": "assistant", "content": output.text, "refusal": None}})

    def beside_choices(self, output: RequestOutput) -> dict[str, Any]:
        return self.of_prompt(output)

    def chunks(self, index: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        if index not in self._begun:
            self._begun.add(index)
            opening = RequestOutput(output.request_id, output.index, (), "")
            yield self._choice(index, opening, {"delta": {"role": "assistant", "content": ""}})
        if output.text or output.logprobs or output.finish_reason:
            yield self._choice(index, output, {"delta": {"content": output.text} if output.text else {}})

    def _choice(self, index: int, output: RequestOutput, message: dict[str, Any]) -> dict[str, Any]:
        logprobs = None if output.logprobs is None else chat_logprobs(self.served.tokenizer, output.logprobs)
        return {
            "index": index,
            **message,
            "logprobs": logprobs,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }


def prompt_of(served: ServedModel, body: Conversation, *, add_generation_prompt: bool = True) -> list[int]:
    """The ids of a conversation, with the opening of the answer unless told otherwise. Errors: RequestError."""
    return served.encode(_render(served, body, add_generation_prompt), "messages")


def _render(served: ServedModel, body: Conversation, add_generation_prompt: bool) -> str:
    template, variables = served.template, body.chat_template_kwargs
    if template is None:
        raise RequestError("messages", f"the model {served.name!r} has no chat template; use /v1/completions")
    if unread := variables.keys() - template.variables:
        known = ", ".join(sorted(template.variables)) or "none"
        message = f"chat_template_kwargs: the chat template reads {known}, not {', '.join(sorted(unread))}"
        raise RequestError("chat_template_kwargs", message)
    try:
        return template.render(
            [message.model_dump() for message in body.messages],
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
    except ValueError as error:
        raise RequestError("messages", str(error)) from None
