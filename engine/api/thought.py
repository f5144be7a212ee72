"""A thought parted from the answer that follows it, piece by piece.

Qwen3 writes `<think>`, a line's end, the thought, `</think>`, an empty line and the answer. The tags, the line ends
next to them and those before the answer belong to neither. Where a text begins otherwise, all of it is the answer: a
`<think>` further on is text like any other. A thought that does not end is all there is.
"""

from __future__ import annotations

from engine.api.thinking import END_OF_THINKING, THINK


class ThoughtSplit:
    """One sample's text. Pieces go in as they come; what goes out, joined, does not depend on where they were cut."""

    def __init__(self, *, inside: bool = False) -> None:
        """inside: the prompt has opened the thought already."""
        self._held = ""
        self._place = self._thought_begins if inside else self._start

    def push(self, text: str) -> tuple[str, str]:
        """What a piece adds: (to the thought, to the answer)."""
        self._held += text
        return self._place(False)

    def finish(self) -> tuple[str, str]:
        """What was held back, when the text has ended."""
        return self._place(True)

    def _start(self, is_end: bool) -> tuple[str, str]:
        begun = self._held.lstrip()
        if begun.startswith(THINK):
            self._held, self._place = begun[len(THINK) :], self._thought_begins
            return self._place(is_end)
        if not is_end and THINK.startswith(begun):
            return "", ""
        return self._become_answer()

    def _thought_begins(self, is_end: bool) -> tuple[str, str]:
        self._held = self._held.lstrip("\n")
        if not self._held:
            return "", ""
        self._place = self._thought
        return self._place(is_end)

    def _thought(self, is_end: bool) -> tuple[str, str]:
        thought, tag, rest = self._held.partition(END_OF_THINKING)
        if tag:
            self._held, self._place = rest, self._answer_begins
            return thought.rstrip("\n"), self._place(is_end)[1]
        if not is_end:
            # Line ends may turn out to be those before the tag.
            thought = thought[: len(thought) - unfinished(thought, END_OF_THINKING)].rstrip("\n")
        self._held = self._held[len(thought) :]
        return thought, ""

    def _answer_begins(self, is_end: bool) -> tuple[str, str]:
        self._held = self._held.lstrip("\n")
        return self._become_answer() if self._held else ("", "")

    def _become_answer(self) -> tuple[str, str]:
        self._place = self._answer
        return self._place(False)

    def _answer(self, is_end: bool) -> tuple[str, str]:
        answer, self._held = self._held, ""
        return "", answer


def unfinished(text: str, tag: str) -> int:
    """The length of the longest ending of a text that begins the tag, and is not all of it."""
    return next((length for length in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:length])), 0)
