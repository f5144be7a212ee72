"""Training batches: documents of every kind, drawn at random and packed into sequences of one length.

A sequence begins at the beginning of a document, as a prompt does, and its last document is cut where the sequence
ends. Attention is causal over the whole sequence: earlier documents are company that the model learns to ignore.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

# The share of the tokens that each kind of text has in training.
SHARES = {"prose": 0.20, "chat": 0.70, "stories": 0.06, "statements": 0.04}
SHORTEST_RUN = 64  # tokens of prose in a row, at least


@dataclass(frozen=True)
class Documents:
    """Documents of one kind, one after another: document i is tokens[starts[i] : starts[i + 1]]."""

    tokens: np.ndarray  # i16; ~id where the token is given and not learned
    starts: np.ndarray  # i64


class Packer:
    """Draws batches from the file that `prepare.py` wrote. The same seed gives the same batches."""

    def __init__(self, corpus: Path, seed: int) -> None:
        with np.load(corpus) as arrays:
            self.kinds = {kind: Documents(arrays[f"{kind}.tokens"], arrays[f"{kind}.starts"]) for kind in SHARES}
            self.texts = arrays["prose.texts"]
            self.held_out = arrays["held_out.tokens"].astype(np.int32)
        self.random = np.random.default_rng(seed)
        self.used, self.total = dict.fromkeys(SHARES, 0), 0

    def batch(self, rows: int, length: int) -> np.ndarray:  # i32 [rows, length + 2]
        """Two tokens more than positions: the one that follows the last, and the one after that (for MTP).

        A token that is given and not learned is ~id, its complement.
        """
        return np.stack([self._sequence(length + 2) for _ in range(rows)])

    def _sequence(self, length: int) -> np.ndarray:
        names = list(SHARES)
        pieces: list[np.ndarray] = []
        filled = 0
        while filled < length:
            # The kind that is furthest behind its share, noise added so that any kind may open a sequence.
            behind = [SHARES[name] * self.total - self.used[name] for name in names]
            kind = names[int(np.argmax(behind + self.random.normal(0.0, length, len(names))))]
            piece = self._prose(length) if kind == "prose" else self._document(kind)
            piece = piece[: length - filled]
            pieces.append(piece)
            filled += len(piece)
            self.used[kind] += len(piece)
            self.total += len(piece)
        return np.concatenate(pieces).astype(np.int32)

    def _document(self, kind: str) -> np.ndarray:
        documents = self.kinds[kind]
        index = self.random.integers(len(documents.starts) - 1)
        return documents.tokens[documents.starts[index] : documents.starts[index + 1]]

    def _prose(self, length: int) -> np.ndarray:
        """Whole paragraphs of one text in a row, up to a length that is drawn."""
        prose = self.kinds["prose"]
        first = int(self.random.integers(len(prose.starts) - 1))
        text_end = self.texts[np.searchsorted(self.texts, first, side="right")]
        wanted = prose.starts[first] + self.random.integers(SHORTEST_RUN, length)
        last = min(int(np.searchsorted(prose.starts, wanted)), int(text_end))
        return prose.tokens[prose.starts[first] : prose.starts[last]]
