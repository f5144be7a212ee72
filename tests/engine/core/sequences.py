"""Sequences without an engine."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Ids
from typing import Any

from engine.core.sequence import Sequence
from engine.core.text import TextStream
from reference.serving.request import Request, SamplingParams
from tests.engine.core.vocabulary import detokenizer


def sequence_of(prompt: Ids[int], *, arrival: int = 0, priority: int = 0, budget: int = 100, **params: Any) -> Sequence:
    """The first sample of a request."""
    chosen = SamplingParams(**params)
    return Sequence(
        Request(f"r{arrival}", tuple(prompt), chosen, priority),
        index=0,
        arrival=arrival,
        added_at=0.0,
        budget=budget,
        text=TextStream.of(chosen, detokenizer),
        constraint=None,
        tokens=array("i", prompt),
        prompt_hashes=[],
    )
