"""/v1/completions: prompts continued."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from engine.api.answer import Answer, join
from engine.api.answer_format import constraint_of
from engine.api.logprobs import CompletionLogprobs, with_top
from engine.api.protocol import CompletionRequest
from engine.api.served import ServedModel
from reference.serving.request import RequestOutput


@dataclass
class CompletionAnswer(Answer):
    """With `echo` each choice begins with its prompt: the text of its ids, special tokens shown."""

    id_prefix = "cmpl"
    kind = chunk_kind = "text_completion"
    renamed: ClassVar = {"prompt_token_ids": "prompt"}

    body: CompletionRequest
    _begun: dict[int, CompletionLogprobs] = field(default_factory=dict)  # choices that have put something out

    @classmethod
    def prepare(cls, served: ServedModel, body: CompletionRequest) -> CompletionAnswer:
        """Errors: RequestError."""
        params = served.sampling_params(
            body,
            max_tokens=body.max_tokens,
            logprobs=body.logprobs,
            echoed_logprobs=body.logprobs if body.echo else None,
            constraint=constraint_of(served.grammars, body),
        )
        prompts = [
            served.encode(prompt, "prompt", add_special=True) if isinstance(prompt, str) else prompt
            for prompt in body.prompt
        ]
        return cls(served, body, prompts, params)

    def choice(self, index: int, outputs: list[RequestOutput]) -> dict[str, Any]:
        return self._choice(index, join(outputs))

    def chunks(self, index: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        choice = self._choice(index, output)
        if choice["text"] or choice["logprobs"] or choice["finish_reason"]:
            yield choice

    def _choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        text = output.text
        pieces: list[dict[str, list[Any]]] = []
        if index not in self._begun:
            self._begun[index] = CompletionLogprobs(self.served.tokenizer, self.params.skip_special_tokens)
            if self.body.echo:
                prompt = self.prompts[index // self.params.n]
                text = self.served.tokenizer.decode(prompt, skip_special_tokens=False) + text
                if self.body.logprobs is not None and output.prompt_logprobs is not None:
                    entries = with_top(output.prompt_logprobs, self.body.logprobs)
                    pieces.append(self._begun[index].prompt(prompt, entries))
        if output.logprobs is not None:
            pieces.append(self._begun[index].sampled(output.logprobs))
        return {
            "index": index,
            "text": text,
            **self.of_prompt(output),
            "logprobs": {name: [x for piece in pieces for x in piece[name]] for name in pieces[0]} if pieces else None,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
