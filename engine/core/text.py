"""The text of one sample as it grows: what may be shown, and the stop strings in it.

The rules are those of `reference/serving/stop.py`, where every token decodes the whole output anew; here a token costs
the same wherever it stands. Kept are only the characters that were not shown, and those before them in which a stop
string may have begun.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from reference.serving.request import SamplingParams

REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The text of one sample, token by token (`engine.detokenize`)."""

    @property
    def pending(self) -> bool:
        """Has a character begun whose other bytes are still to come?"""

    def push(self, token_id: int) -> str:
        """What this token adds: whole characters, perhaps none."""

    def flush(self) -> str:
        """At the end: U+FFFD for a character that was begun and never ended."""


DetokenizerFactory = Callable[[bool], Detokenizer]  # skip special tokens -> a detokenizer of one sample


@dataclass(slots=True)
class TextStream:
    """Text positions below count characters from the sample's beginning; `_kept` begins at position `_base`."""

    detokenizer: Detokenizer
    stop: tuple[str, ...]
    include_stop: bool
    _longest: int = 0
    _kept: str = ""
    _base: int = 0
    _shown: int = 0
    _searched: int = 0  # no stop string ends before this

    @classmethod
    def of(cls, params: SamplingParams, detokenizers: DetokenizerFactory) -> TextStream:
        return cls(
            detokenizers(params.skip_special_tokens),
            params.stop,
            params.include_stop_str_in_output,
            _longest=max(map(len, params.stop), default=0),
        )

    def push(self, token_id: int) -> tuple[str, str | None]:
        """A token, after which more may come: the text to show, and the stop string that it completes."""
        piece = self.detokenizer.push(token_id)
        if not self.stop and not self._kept and not piece.endswith(REPLACEMENT):
            return piece, None  # nothing is held back: most tokens
        self._kept += piece
        # A last U+FFFD may be a whole character or the beginning of one; only the next token tells.
        unchanging = self._kept if self.detokenizer.pending else self._kept.removesuffix(REPLACEMENT)
        if not self.stop:
            return self._show(len(unchanging)), None
        if found := self._find(unchanging):
            return found
        held_back = 0 if self.include_stop else self._possible_beginning(unchanging)
        return self._show(len(unchanging) - held_back), None

    def finish(self, token_id: int | None) -> tuple[str, str | None]:
        """The last token (None: its text is not shown): the text to show, and the stop string that is in it."""
        if token_id is not None:
            self._kept += self.detokenizer.push(token_id)
        self._kept += self.detokenizer.flush()
        if self.stop and (found := self._find(self._kept)):
            return found
        return self._show(len(self._kept)), None

    def rest(self) -> str:
        """What was held back, of a sample that cannot go on."""
        self._kept += self.detokenizer.flush()
        return self._show(len(self._kept))

    def _show(self, kept_end: int) -> str:
        begin = self._shown - self._base
        text = self._kept[begin:kept_end]
        self._shown = max(self._shown, self._base + kept_end)
        keep_from = min(self._shown, self._searched - self._longest + 1) if self.stop else self._shown
        if keep_from > self._base:
            self._kept = self._kept[keep_from - self._base :]
            self._base = keep_from
        return text

    def _find(self, text: str) -> tuple[str, str] | None:
        begin = max(0, self._searched - self._longest + 1 - self._base)
        found = [(at + len(stop), at, stop) for stop in self.stop if (at := text.find(stop, begin)) >= 0]
        self._searched = self._base + len(text)
        if not found:
            return None
        end, at, stop = min(found)
        return self._show(end if self.include_stop else at), stop

    def _possible_beginning(self, text: str) -> int:
        """The length of the longest ending of the text that begins a stop string."""
        unshown = len(text) - (self._shown - self._base)  # what was shown begins none
        for length in range(min(self._longest - 1, unshown), 0, -1):
            ending = text[-length:]
            if any(length < len(stop) and stop.startswith(ending) for stop in self.stop):
                return length
        return 0
