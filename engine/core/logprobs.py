"""Log-probabilities as a runner gives them, in the form that requests are answered in."""

from __future__ import annotations

from reference.serving.request import TokenLogprobs
from reference.serving.runner import TokenScores


def token_logprobs(scores: TokenScores, number: int, token_id: int, num_top: int) -> TokenLogprobs:
    """Those of one token, with as many of the likeliest tokens as its own request asked for."""
    ids, values = scores.top_ids[number, :num_top].tolist(), scores.top_logprobs[number, :num_top].tolist()
    top = tuple(zip(ids, values, strict=True))
    return TokenLogprobs(token_id, float(scores.logprobs[number]), int(scores.ranks[number]), top)
