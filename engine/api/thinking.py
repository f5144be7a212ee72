"""Where a model's thought stands in a chat's answer, told from the prompt that its template made.

Qwen3's templates end a prompt with `<think>` (the model only thinks), with an empty thought (`enable_thinking` false)
or with neither: the models that read `enable_thinking` then begin with `<think>` themselves, and others do not think.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.api.served import ServedModel
from engine.grammar import after_reasoning
from reference.serving.request import Constraint

THINK, END_OF_THINKING = "<think>", "</think>"
_SWITCH = "enable_thinking"  # what the templates of models that may think read


def thinks(served: ServedModel) -> bool:
    """Does the model know thoughts, as tokens of their own?"""
    return {THINK, END_OF_THINKING} <= served.tokenizer.added_tokens.keys()


def opens_thought(served: ServedModel, prompt: Sequence[int]) -> bool:
    """Does the prompt end inside a thought?"""
    return _last_word(served, prompt) == served.tokenizer.added_tokens.get(THINK, -1)


def after_thought(served: ServedModel, prompt: Sequence[int], constraint: Constraint) -> Constraint:
    """The constraint of an answer that may begin with a thought, if the model thinks after this prompt."""
    if not thinks(served):
        return constraint
    begin, end = (served.tokenizer.added_tokens[tag] for tag in (THINK, END_OF_THINKING))
    last = _last_word(served, prompt)
    may_think = served.template is not None and _SWITCH in served.template.variables
    if last != begin and (last == end or not may_think):
        return constraint
    return after_reasoning(served.grammars, constraint, begin, end, inside=last == begin)


def _last_word(served: ServedModel, prompt: Sequence[int]) -> int | None:
    """The last token that is not white space."""
    return next((token_id for token_id in reversed(prompt) if served.tokenizer.id_to_bytes(token_id).strip()), None)
