"""Rung 2: the engine's answer, judged by the specification along the engine's own tokens.

At each token the specification is asked what it would have sampled after the same ones. Another token is a failure,
unless the specification's own margin there, after the draw's perturbation, is under 1e-3: such steps are counted, and
the judgement goes on from the engine's token (teacher-forced). Log-probabilities are within 1e-4. Text and ending are
those that the specification gives to these tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reference.serving.generate import banned_token_ids
from reference.serving.log_probs import log_probs_at
from reference.serving.request import FinishReason, Request, RequestOutput, TokenLogprobs
from reference.serving.sample import perturbed_logits
from reference.serving.served_model import ServedModel
from reference.serving.stop import ending, text_to_show

MARGIN = 1e-3
LOGPROB_TOLERANCE = 1e-4


@dataclass
class Judgement:
    """How many tokens were judged, and at how many the two chose differently within the margin."""

    tokens: int = 0
    near_ties: int = 0


def judge(
    served: ServedModel, request: Request, index: int, outputs: Sequence[RequestOutput], judgement: Judgement
) -> None:
    """Judge one sample, finished or aborted. Errors: AssertionError."""
    params, prompt = request.params, request.prompt_token_ids
    tokens = [token_id for output in outputs for token_id in output.token_ids]
    if not tokens:
        assert outputs == [] or outputs[-1].finish_reason is FinishReason.ERROR
        return
    rows = list(served.model.all_logits((*prompt, *tokens[:-1])))
    budget = served.max_model_len - len(prompt)
    budget = budget if params.max_tokens is None else min(budget, params.max_tokens)
    shown = ""
    for number, token_id in enumerate(tokens):
        logits, output = rows[len(prompt) - 1 + number], outputs[number]
        row = perturbed_logits(
            logits,
            prompt,
            tokens[:number],
            params,
            sample_index=index,
            banned_token_ids=banned_token_ids(request, number, len(logits), served),
        )[0]
        judgement.tokens += 1
        if int(np.argmax(row)) != token_id:
            margin = float(np.max(row) - row[token_id])
            assert margin < MARGIN, f"token {number} is {token_id}, {margin} from the specified {int(np.argmax(row))}"
            judgement.near_ties += 1
        upto = tokens[: number + 1]
        end = ending(upto, params, decode=served.decode, eos_token_ids=served.eos_token_ids, budget=budget)
        text = text_to_show(upto, params, served.decode) if end is None else end.text
        assert output.text == text.removeprefix(shown)
        shown = text
        expected = (None, None) if end is None else (end.finish_reason, end.stop_reason)
        assert (output.finish_reason, output.stop_reason) == expected
        if params.logprobs is not None:
            assert output.logprobs is not None
            close(output.logprobs[0], log_probs_at(logits, token_id, params.logprobs))
        if number == 0 and params.prompt_logprobs is not None:
            assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == len(prompt)
            for position, said in enumerate(output.prompt_logprobs[1:], start=1):
                assert said is not None
                close(said, log_probs_at(rows[position - 1], prompt[position], params.prompt_logprobs))


def close(said: TokenLogprobs, expected: TokenLogprobs) -> None:
    """Equal within the tolerance; ranks and order only where they are not a matter of it."""
    assert said.token_id == expected.token_id
    assert abs(said.logprob - expected.logprob) < LOGPROB_TOLERANCE
    assert len(said.top) == len(expected.top)
    for (_, ours), (_, theirs) in zip(said.top, expected.top, strict=True):
        assert abs(ours - theirs) < LOGPROB_TOLERANCE
