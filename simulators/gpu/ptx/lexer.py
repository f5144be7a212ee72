"""Cuts a PTX text into words, and keeps where each of them stands.

A word is a string, so that the parser compares it with what it expects. Comments and blanks fall away. What is kept
whole: names with what follows their dots (`mbarrier.try_wait.shared::cta.b64`, `%tid.x`), numbers, quoted strings. A
dot that follows a blank begins a word of its own, which ends before the next dot (`.param`, `.b32`).
Source: PTX ISA, section "Syntax".
"""

from __future__ import annotations

import re
from bisect import bisect_right

from simulators.gpu.errors import PtxSyntaxError
from simulators.gpu.ptx.module import Place

_WORD = re.compile(
    r"""
    (//[^\n]* | /\*.*?\*/)                           # group 1: a comment
    | [%$_A-Za-z][\w$]* (?: (?:\.|::) [\w$]+ )*      # a name: of an opcode with its modifiers, a register, a label
    | 0[xXfFdD]\w*                                   # a number in hexadecimal digits
    | \d (?: [eE][+-](?=\d) | [\w.] )*               # any other number; what is wrong in it is told when it is read
    | \.\d+ (?: [eE][+-]?\d+ )? (?![\w$])            # a number that begins with its point
    | \.\w[\w$]* (?: ::[\w$]+ )*                     # a directive, a type, a modifier apart from its opcode
    | "(?: \\. | [^"\\\n] )*"                        # a string
    | << | >> | [-+*~!|<>()\[\]{},;:=@]
    | (\S)                                           # group 2: nothing that PTX knows
    """,
    re.VERBOSE | re.ASCII | re.DOTALL,
)
_UNKNOWN = 2
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


class Words:
    """The words of a text, read from the first to the last; `at` is the next one.

    Two empty words follow the last, so that whoever looks at the next two words is always within the list.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._newlines = [found.start() for found in re.finditer("\n", text)]
        self.words: list[str] = []
        self.starts: list[int] = []  # in the text
        for match in _WORD.finditer(text):  # matches are not kept: many objects at once wake the garbage collector
            if match.lastindex is None:
                self.words.append(match.group())
                self.starts.append(match.start())
            elif match.lastindex == _UNKNOWN:
                raise self._bad_character(match.start())
        self.words += ["", ""]
        self.starts += [len(text), len(text)]

    def _bad_character(self, start: int) -> PtxSyntaxError:
        if self.text.startswith("/*", start):
            message = "the comment that begins here does not end"
        elif self.text[start] == '"':
            message = "the string that begins here does not end on its line"
        else:
            message = f"the character {self.text[start]!r} is not one of PTX"
        return PtxSyntaxError(message, Place(bisect_right(self._newlines, start) + 1))

    def line(self, index: int) -> int:
        """The line, from 1, of the word of that index."""
        return bisect_right(self._newlines, self.starts[index]) + 1

    def written(self, first: int, end: int) -> str:
        """The words from `first` up to, not with, `end`, on one line as they are written."""
        raw = self.text[self.starts[first] : self.starts[end]]
        if "/" in raw:  # outside strings only a comment has one
            raw = _COMMENTS.sub(" ", raw)
        return " ".join(raw.split())

    @property
    def next(self) -> str:
        return self.words[self.at]

    def take(self) -> str:
        """The next word, which is then behind; the end of the text stays ahead."""
        word = self.words[self.at]
        if word:
            self.at += 1
        return word

    def accept(self, word: str) -> bool:
        """Whether the next word is this one, which is then behind."""
        found = self.words[self.at] == word
        self.at += found
        return found

    def expect(self, word: str) -> None:
        if not self.accept(word):
            raise self.expected(f"{word!r}")

    def error(self, message: str, index: int | None = None) -> PtxSyntaxError:
        """That error, at the next word or the word of that index."""
        return PtxSyntaxError(message, Place(self.line(self.at if index is None else index)))

    def expected(self, what: str) -> PtxSyntaxError:
        found = repr(self.next) if self.next else "the end of the text"
        return self.error(f"expected {what}, found {found}")

    def name(self, what: str) -> str:
        """The next word, which must be a name without dots, of what the error says."""
        word = self.next
        if not is_name(word):
            raise self.expected(what)
        self.at += 1
        return word


_NAME = re.compile(r"[%$_A-Za-z][\w$]*", re.ASCII)


def is_name(word: str) -> bool:
    return _NAME.fullmatch(word) is not None
