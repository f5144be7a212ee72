"""Where instructions come from: `.file` and `.loc`; and debug information, which is passed over.

Source: PTX ISA, sections "Debugging Directives: .file", "Debugging Directives: .loc", "Debugging Directives: .section".
"""

from __future__ import annotations

from simulators.gpu.ptx.constants import integer
from simulators.gpu.ptx.lexer import Words
from simulators.gpu.ptx.module import Place


class SourceFiles:
    """The files that a text names, and the place in them that holds for the instructions that follow.

    `.file` may follow the instructions that need it, so all of them are read first.
    """

    def __init__(self, words: Words) -> None:
        self._files: dict[int, str] = {}
        self._file: str | None = None
        self._line = 0
        for index, word in enumerate(words.words):
            if word == ".file":
                words.at = index
                number, name = _file(words)
                self._files.setdefault(number, name)
        words.at = 0

    def place(self, ptx_line: int) -> Place:
        return Place(ptx_line, self._file, self._line)

    def forget(self) -> None:
        """A kernel begins: what `.loc` said in the last one does not hold."""
        self._file, self._line = None, 0

    def loc(self, words: Words) -> None:
        """`.loc 1 20 3`; where the function around it was inlined may follow, and does not count."""
        words.expect(".loc")
        self._file, self._line = self._position(words)
        while words.accept(","):
            if words.accept("function_name"):
                words.name("the label of a function's name")
                if words.accept("+"):
                    integer(words, "an offset")
            else:
                words.expect("inlined_at")
                self._position(words)

    def _position(self, words: Words) -> tuple[str, int]:
        first = words.at
        number = _decimal(words, "the number of a file")
        line = _decimal(words, "a line")
        _decimal(words, "a column")
        if number not in self._files:
            raise words.error(f"no .file has the number {number}", first)
        return self._files[number], line


def skip_file(words: Words) -> None:
    _file(words)


def skip_pragma(words: Words) -> None:
    """`.pragma "nounroll";`: what a compiler may do, which changes no result."""
    words.expect(".pragma")
    while True:
        _string(words)
        if not words.accept(","):
            break
    words.expect(";")


def skip_section(words: Words) -> None:
    """`.section .debug_info { ... }`."""
    first = words.at
    words.expect(".section")
    words.take()
    words.expect("{")
    while not words.accept("}"):
        if words.next == "{" or not words.take():
            raise words.error("the section that begins here does not end", first)


def _file(words: Words) -> tuple[int, str]:
    """`.file 1 "name"`, where a time and a size may follow."""
    words.expect(".file")
    number = _decimal(words, "the number of a file")
    name = _string(words)
    for what in ("a time", "a size"):
        if words.accept(","):
            _decimal(words, what)
    return number, name


def _string(words: Words) -> str:
    if words.next[:1] != '"':
        raise words.expected("a string")
    return words.take()[1:-1]


def _decimal(words: Words, what: str) -> int:
    """A plain number: no expression, for another number may follow it."""
    if not words.next.isdecimal() or len(words.next) > 19:
        raise words.expected(what)
    return int(words.take())
