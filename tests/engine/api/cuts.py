"""Texts cut into pieces in every way."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st


def cut(text: str, places: list[int]) -> list[str]:
    """The text in pieces that end at these places."""
    ends = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    return [text[begin:end] for begin, end in pairwise(ends)]


PLACES = st.lists(st.integers(0, 120), max_size=40)
