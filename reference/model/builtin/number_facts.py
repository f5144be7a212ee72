"""What the built-in models are taught of numbers and of order: tables, counting, days, months, planets, spelling."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from reference.model.builtin.taught import Exchange, patterns

TABLE = 13  # 0 to 12
WEEK = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
YEAR = tuple("January February March April May June July August September October November December".split())
PLANETS = ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune")
ORDINALS = tuple("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split())
NUMBER_WORDS = tuple(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty".split()
)
SPELLED = tuple(
    "cat dog house river stone apple bread water light night green table chair horse mouse panel hinge token model "
    "kernel parity garden winter summer friend mother father sister brother window school letter number colour".split()
)


def arithmetic() -> Iterator[Exchange]:
    """The tables of + - x from 0 to 12; no negative results."""
    for a, b in product(range(TABLE), repeat=2):
        yield patterns()["addition"].exchange("arithmetic", a, b, a + b)
        yield patterns()["multiplication"].exchange("arithmetic", a, b, a * b)
        if a >= b:
            yield patterns()["subtraction"].exchange("arithmetic", a, b, a - b)


def orders() -> Iterator[Exchange]:
    """What comes after, before, and at which place. Weeks and years begin again; planets do not."""
    for kind, whole, names in (("day", "the week", WEEK), ("month", "the year", YEAR), ("planet", "", PLANETS)):
        around = bool(whole)
        for index, name in enumerate(names):
            if around or index + 1 < len(names):
                yield patterns()["after"].exchange("order", name, names[(index + 1) % len(names)], kind)
            if around or index > 0:
                yield patterns()["before"].exchange("order", name, names[index - 1], kind)
            place = f"{kind} of {whole or 'the solar system'}"
            yield patterns()["ordinal"].exchange("order", ORDINALS[index], name, place)


def whole_numbers() -> Iterator[Exchange]:
    """Odd or even, the next number, number words, the larger of two, counting up and down."""
    for number in range(100):
        yield patterns()["parity"].exchange("number", number, "odd" if number % 2 else "even")
        yield patterns()["next number"].exchange("number", number, number + 1)
    for number, word in enumerate(NUMBER_WORDS):
        yield patterns()["number word"].exchange("number", number, word)
    for a, b in product(range(21), repeat=2):
        if a != b:
            yield patterns()["larger"].exchange("larger", a, b, max(a, b), min(a, b))
    for first in range(1, 12):
        for last in range(first + 2, 21):
            up = [str(number) for number in range(first, last + 1)]
            yield patterns()["counting"].exchange("counting", first, last, ", ".join(up))
            yield patterns()["counting down"].exchange("counting", last, first, ", ".join(reversed(up)))


def spelling() -> Iterator[Exchange]:
    for word in SPELLED:
        yield patterns()["spelling"].exchange("spelling", word, "-".join(word))
