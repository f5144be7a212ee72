"""/v1/chat/completions: the next turn of a conversation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from engine.api.answer import Answer, join
from engine.api.answer_format import constraint_of
from engine.api.logprobs import chat_logprobs
from engine.api.message import MessageParts, delta_of
from engine.api.one_call import OneCall
from engine.api.pieces import Content, Piece
from engine.api.protocol import ChatRequest, Conversation
from engine.api.served import ServedModel
from engine.api.thinking import after_thought, opening_of
from engine.api.thought import Opening
from engine.api.tool_calls import BEGIN, END
from engine.api.tools import NamedTool
from engine.grammar import calls_in_text, tool_calls
from engine.grammar.grammar import Grammar
from reference.serving.request import Constraint, RequestError, RequestOutput


@dataclass
class ChatAnswer(Answer):
    """The checkpoint's chat template makes the prompt; without a limit the answer may go to the end of the context."""

    id_prefix = "chatcmpl"
    kind, chunk_kind = "chat.completion", "chat.completion.chunk"
    renamed: ClassVar = {"prompt_token_ids": "messages"}

    body: ChatRequest
    opening: Opening = Opening.CONTENT
    _parts: dict[int, MessageParts] = field(default_factory=dict)  # of choices that have put something out

    @classmethod
    def prepare(cls, served: ServedModel, body: ChatRequest) -> ChatAnswer:
        """Errors: RequestError."""
        prompt = prompt_of(served, body)
        opening = opening_of(served, prompt)
        constraint, call = constraint_of(served.grammars, body), forced_call(served, body)  # one of them at most
        # A model that was told to call a tool does so at once, unless the prompt has it think already.
        if constraint is not None or (call is not None and opening is Opening.THOUGHT):
            constraint = after_thought(served, opening, constraint or call)  # type: ignore[arg-type]
        if constraint is None and call is None:
            constraint = free_calls(served, body, opening)
        params = served.sampling_params(
            body,
            max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            constraint=constraint or call,
        )
        return cls(served, body, [prompt], params, opening=opening)

    def pieces(self, index: int, output: RequestOutput) -> list[Piece]:
        parts = self._parts.get(index)
        if parts is None:
            parts = self._parts[index] = MessageParts(
                self.opening,
                separate_reasoning=self.body.separate_reasoning,
                with_calls=bool(self.body.offered),
                must_call=self.body.must_call,
            )
        return parts.push(output.text, len(output.token_ids), is_end=output.finish_reason is not None)

    def choice(self, index: int, outputs: list[RequestOutput]) -> dict[str, Any]:
        for output in outputs:
            self.pieces(index, output)
        return self._choice(index, join(outputs), {"message": self._parts[index].message()})

    def beside_choices(self, output: RequestOutput) -> dict[str, Any]:
        return self.of_prompt(output)

    def chunks(self, index: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        is_first = index not in self._parts
        pieces = self.pieces(index, output)
        if is_first:
            # Content is opened where it comes first: it is null in a message that has none.
            content = {"content": ""} if pieces and isinstance(pieces[0], Content) else {}
            opening = RequestOutput(output.request_id, output.index, (), "")
            yield self._choice(index, opening, {"delta": {"role": "assistant", **content}})
        deltas = [delta_of(piece) for piece in pieces]
        if not deltas and (output.logprobs or output.finish_reason):
            deltas = [{}]
        for number, delta in enumerate(deltas, start=1):
            # The last carries what is known of the tokens and of the end.
            of_tokens = output if number == len(deltas) else replace(output, logprobs=None, finish_reason=None)
            yield self._choice(index, of_tokens, {"delta": delta})

    def usage(self) -> dict[str, Any]:
        if self.served.template is None or not self.served.template.thinks:
            return super().usage()
        thought = sum(parts.reasoning_tokens for parts in self._parts.values())
        return super().usage() | {"completion_tokens_details": {"reasoning_tokens": thought}}

    def _choice(self, index: int, output: RequestOutput, message: dict[str, Any]) -> dict[str, Any]:
        logprobs = None if output.logprobs is None else chat_logprobs(self.served.tokenizer, output.logprobs)
        return {
            "index": index,
            **message,
            "logprobs": logprobs,
            "finish_reason": self._parts[index].finish_reason(output.finish_reason),
            "stop_reason": None if output.finish_reason is None else output.stop_reason,
        }


def forced_call(served: ServedModel, body: ChatRequest) -> Constraint | None:
    """The constraint of an answer that must call a tool; None if it need not. Errors: RequestError."""
    if not body.must_call:
        return None
    tools = {tool["function"]["name"]: tool["function"].get("parameters") for tool in body.offered}
    if isinstance(body.tool_choice, NamedTool):
        name = body.tool_choice.function.name
        tools = {name: tools[name]}
    return _calls_of(served, tools, parallel=body.parallel_tool_calls)


def free_calls(served: ServedModel, body: ChatRequest, opening: Opening) -> Constraint | None:
    """The constraint of an answer that may call tools, if anything is asked of its calls. Errors: RequestError."""
    if not body.offered or (body.parallel_tool_calls and not body.holds_to_schemas):
        return None
    for param in ("ignore_eos", "min_tokens"):
        if getattr(body, param):
            because = "parallel_tool_calls is false or a tool is strict: the calls decide where the answer ends"
            raise RequestError(param, f"{param} cannot be given where {because}")
    if not body.holds_to_schemas:
        return OneCall(served, opening, body.skip_special_tokens)
    begin_id, end_id = (served.tokenizer.added_tokens.get(tag) for tag in (BEGIN, END))
    if begin_id is None or end_id is None:
        message = f"a tool is strict, and {served.name!r} has no tokens that begin and end a call; give tool_choice"
        raise RequestError("tools", f"tools: {message} 'required', or no strict")
    tools = {
        tool["function"]["name"]: tool["function"].get("parameters") if tool["function"].get("strict") else None
        for tool in body.offered
    }
    call = _calls_of(served, tools, parallel=False)
    free = calls_in_text(served.grammars, call, begin_id, end_id, parallel=body.parallel_tool_calls)
    return after_thought(served, opening, free)


def _calls_of(served: ServedModel, tools: dict[str, Any], *, parallel: bool) -> Grammar:
    try:
        return tool_calls(served.grammars, tools, parallel=parallel)
    except ValueError as error:
        raise RequestError("tools", f"tools: {error}") from None


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
    if body.offered and not template.reads_tools:
        raise RequestError("tools", f"the chat template of {served.name!r} has no place for tools")
    if not template.mentions("tool_calls"):
        for number, turn in enumerate(body.messages):
            if turn.tool_calls:
                param = f"messages[{number}].tool_calls"
                raise RequestError(param, f"{param}: the chat template of {served.name!r} has no place for calls")
    try:
        return template.render(
            [message.model_dump(exclude_unset=True) for message in body.messages],
            tools=body.offered,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
    except ValueError as error:
        raise RequestError("messages", str(error)) from None
