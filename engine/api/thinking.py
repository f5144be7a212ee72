"""Where a model's thought stands in a chat's answer, told from the prompt that its template made.

Qwen3's templates end a prompt with `<think>` (the model only thinks), with an empty thought (`enable_thinking` false)
or with neither: models whose templates know of thoughts may then begin with `<think>` themselves, others do not think.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.api.served import ServedModel
from engine.api.thought import END_OF_THINKING, THINK, Opening
from engine.grammar import after_reasoning
from reference.serving.request import Constraint

_TAIL = 32  # tokens: enough for an empty thought in tokens of a byte


def opening_of(served: ServedModel, prompt: Sequence[int]) -> Opening:
    """What the prompt says of the answer's beginning."""
    end = served.tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False).rstrip()
    if end.endswith(THINK):
        return Opening.THOUGHT
    if end.endswith(END_OF_THINKING) or served.template is None or not served.template.thinks:
        return Opening.CONTENT
    return Opening.EITHER


def after_thought(served: ServedModel, opening: Opening, constraint: Constraint) -> Constraint:
    """The constraint of an answer that may begin with a thought, if its opening has room for one."""
    begin, end = (served.tokenizer.added_tokens.get(tag) for tag in (THINK, END_OF_THINKING))
    if begin is None or end is None or opening is Opening.CONTENT:
        return constraint
    return after_reasoning(served.grammars, constraint, begin, end, inside=opening is Opening.THOUGHT)
