"""Everything that the built-in models are taught in one question and one answer."""

from __future__ import annotations

from itertools import chain

from reference.model.builtin.number_facts import arithmetic, orders, spelling, whole_numbers
from reference.model.builtin.taught import Exchange, capitals, own_answers, relations


def all_exchanges() -> list[Exchange]:
    """About 2,500 exchanges, in a fixed order. Errors: ValueError if one question is taught two answers."""
    exchanges = list(chain(own_answers(), capitals(), relations(), arithmetic(), orders(), whole_numbers(), spelling()))
    taught: dict[str, str] = {}
    for exchange in exchanges:
        for question in exchange.questions:
            if taught.setdefault(question, exchange.answer) != exchange.answer:
                raise ValueError(f"{question!r} is taught two answers: {taught[question]!r} and {exchange.answer!r}")
    return exchanges
