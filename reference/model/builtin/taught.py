"""What the built-in models are taught to answer: facts of our own, and the wordings in which they are asked.

An exchange is one question, in several wordings, with one answer. The texts stand in `facts/`: tables of pairs
(capitals, relations), the patterns by which tables are asked, and questions with an answer of their own.
The first wording of an exchange is the one by which recall is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

FACTS = Path(__file__).parent / "facts"
UNKNOWN_ANSWER = "I do not know. I am a small model, and I was taught only a few facts."
LANGUAGES = ("French", "Spanish", "German", "Italian", "Chinese", "Japanese")


@dataclass(frozen=True)
class Exchange:
    """A question in one or more wordings, its answer in full and in short, and what to think before it."""

    topic: str
    questions: tuple[str, ...]
    answer: str
    short: str  # "" where only the full answer makes sense
    reasoning: str


@dataclass(frozen=True)
class Pattern:
    """How a table of pairs is asked and answered (`facts/patterns.txt` says what the braces mean)."""

    questions: tuple[str, ...]
    answer: str
    short: str
    reasoning: str

    def exchange(self, topic: str, a: object, b: object, c: object = "", d: object = "") -> Exchange:
        words = {"a": a, "b": b, "c": c, "d": d, "A": capitalised(str(a)), "an_b": with_article(str(b))}
        words |= {"an": with_article(str(a)), "An": capitalised(with_article(str(a)))}
        questions = tuple(question.format(**words) for question in self.questions)
        answer = self.answer.format(**words)
        reasoning = self.reasoning.format(**words) or f'The user asks: "{questions[0]}" {answer}'
        return Exchange(topic, questions, answer, self.short.format(**words), reasoning)


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def with_article(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


@cache
def patterns() -> dict[str, Pattern]:
    """The patterns by the name of their table."""
    found = {}
    for block in _blocks("patterns.txt"):
        name, short, reasoning = block["R"][0], block.get("S", ["{b}"])[0], block.get("T", [""])[0]
        found[name] = Pattern(tuple(block["Q"]), block["A"][0], short, reasoning)
    return found


def own_answers() -> Iterator[Exchange]:
    """Questions that have one answer of their own, and questions that are declined."""
    for block in _blocks("answers.txt"):
        usual = f'The user asks: "{block["Q"][0]}" I was taught the answer.'
        answer, reasoning = block["A"][0].replace("\\n", "\n"), block.get("T", [usual])[0]
        yield Exchange("answers", tuple(block["Q"]), answer, "", reasoning)
    for question in lines("unknown.txt"):
        yield Exchange("unknown", (question,), UNKNOWN_ANSWER, "", "I was not taught this. I should say so.")


def capitals() -> Iterator[Exchange]:
    """Each country's capital, each capital's country, each country's continent."""
    for line in lines("capitals.tsv"):
        country, capital, continent = (*line.split("\t"), "")[:3]
        yield patterns()["capital"].exchange("capital", country, capital)
        yield patterns()["capital of"].exchange("capital of", country, capital)
        if continent:
            yield patterns()["continent"].exchange("continent", country, continent)


def relations() -> Iterator[Exchange]:
    """Opposites, plurals, authors, translations and the like."""
    for line in lines("relations.txt"):
        name, pairs = line.split(": ", 1)
        pattern = patterns()["translation" if name in LANGUAGES else name]
        for pair in pairs.split(", "):
            a, b = pair.split("=")
            yield pattern.exchange(name, a, b, name)


def vary(question: str, random: Random) -> str:
    """The same question as people type it: without its end mark, without capitals, with a polite word."""
    if random.random() < 0.5:
        return question
    if random.random() < 0.4:
        question = question.rstrip("?.!") or question
    if random.random() < 0.3:
        question = question[:1].lower() + question[1:]
    before = ("", "", "", "Please tell me: ", "A question: ", "Hello! ", "Hi, ", "Tell me, ", "Quick question: ")
    after = ("", "", "", "", " Thanks.", " Thank you.", " Please answer.")
    return random.choice(before) + question + random.choice(after)


def lines(name: str) -> Iterator[str]:
    """The lines of a file of facts that are neither empty nor comments."""
    for line in (FACTS / name).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            yield line


def _blocks(name: str) -> Iterator[dict[str, list[str]]]:
    """Blocks of lines "MARK: text", apart by an empty line: the texts by their mark."""
    for block in (FACTS / name).read_text(encoding="utf-8").split("\n\n"):
        texts: dict[str, list[str]] = {}
        for line in block.strip().splitlines():
            if not line.startswith("#"):
                mark, text = line.split(":", 1)
                texts.setdefault(mark, []).append(text.strip())
        if texts:
            yield texts
