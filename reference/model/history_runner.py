"""A model without weights: what follows is a pure function of the tokens so far, at once and on any machine.

It stands behind the same seam as a real one, and its KV memory is as real: a slot holds a fingerprint of the sequence
up to its token, and what is sampled comes from the fingerprints that the block table leads to, each of them. So a block
that was given away early, a slot that was not written or a table that is wrong gives other tokens; or, since a slot
also holds its position, an error that names the slot. It shows in seconds what an engine does, right and wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from reference.kernels.log_probs import token_log_probs
from reference.kernels.sampling import is_usable
from reference.model.sample_rows import rows_that_sample, sample_rows
from reference.serving.in_flight import InFlight
from reference.serving.runner import NOT_SAMPLED, Batch, StepOutput, TokenScores

_WORD = 2**64 - 1
UNWRITTEN = -1  # position of a slot that holds nothing


class HistoryModel:
    """Logits as a function of all tokens so far. The specification's side of it."""

    def __init__(self, vocab_size: int, *, scale: float = 2.0) -> None:
        self.vocab_size = vocab_size
        self.scale = scale

    def last_logits(self, token_ids: Sequence[int]) -> np.ndarray:  # f32 [V]
        return self.logits(seed_of(fingerprints(0, 0, token_ids)))

    def all_logits(self, token_ids: Sequence[int]) -> Iterator[np.ndarray]:
        prints = fingerprints(0, 0, token_ids)
        return (self.logits(seed_of(prints[:end])) for end in range(1, len(prints) + 1))

    def logits(self, seed: int) -> np.ndarray:  # f32 [V]
        """Uniform in [-2 scale, 2 scale)."""
        with np.errstate(over="ignore"):
            bits = _mixed(np.uint64(seed) + np.arange(1, self.vocab_size + 1, dtype=np.uint64) * _GOLDEN)
        return ((bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-22) - 2) * np.float32(self.scale)


class HistoryRunner:
    """A `Runner` of that model. `positions` and `prints`: what each slot holds."""

    def __init__(self, model: HistoryModel, *, num_token_ids: int, num_blocks: int, block_size: int) -> None:
        self.model = model
        self.num_token_ids = num_token_ids
        self.vocab_size = model.vocab_size
        self.num_blocks, self.block_size = num_blocks, block_size
        self.positions = np.full(num_blocks * block_size, UNWRITTEN, np.int64)
        self.prints = np.zeros(num_blocks * block_size, np.uint64)
        self._in_flight = InFlight[StepOutput]()
        self._previous = np.empty(0, np.int32)  # what each row of the last batch sampled

    def submit(self, batch: Batch) -> int:
        self._in_flight.check_room()
        batch.check_rows()
        token_ids = self._known(batch.token_ids)
        self._write(batch, token_ids)
        output = self._sampled(batch)
        self._previous = output.token_ids
        return self._in_flight.add(output)

    def result(self, ticket: int) -> StepOutput:
        return self._in_flight.take(ticket)

    def reset(self) -> None:
        self._in_flight.clear()

    def poison(self, blocks: Sequence[int]) -> None:
        """Forget what blocks hold, so that reading them is an error."""
        self.positions.reshape(-1, self.block_size)[list(blocks)] = UNWRITTEN

    def _known(self, token_ids: np.ndarray) -> np.ndarray:
        """Tokens, with those that the previous batch sampled in their place."""
        token_ids = token_ids.copy()
        pending = token_ids < 0
        token_ids[pending] = np.maximum(self._previous[-1 - token_ids[pending]], 0)  # an error reads as any token
        return token_ids

    def _write(self, batch: Batch, token_ids: np.ndarray) -> None:
        """Rows in the order of their first positions: a row may reuse what another one of the batch writes."""
        if len(np.unique(batch.slot_mapping)) < batch.num_tokens:
            raise ValueError(f"two tokens are written to one slot: {batch.slot_mapping.tolist()}")
        self.positions[batch.slot_mapping] = UNWRITTEN
        start = batch.query_start.tolist()
        for row in np.argsort(batch.positions[batch.query_start[:-1]], kind="stable").tolist():
            tokens = slice(start[row], start[row + 1])
            first = int(batch.positions[start[row]])
            slots, written = batch.slot_mapping[tokens], batch.positions[tokens]
            if not np.array_equal(written, np.arange(first, batch.seq_lens[row])):
                raise ValueError(f"row {row}: positions {written.tolist()} do not end at {batch.seq_lens[row]} tokens")
            if not np.array_equal(slots, self._slots(batch, row)[first:]):
                raise ValueError(f"row {row}: the slots {slots.tolist()} are not where its block table leads")
            before = int(self.prints[self._read(batch, row, first)[-1]]) if first else 0
            self.prints[slots] = fingerprints(before, first, token_ids[tokens].tolist())
            self.positions[slots] = written
            opened = slots[slots % self.block_size == 0]
            for slot in opened:  # the rest of a block that is opened is void
                end = slot + self.block_size
                rest = np.setdiff1d(np.arange(slot, end), slots, assume_unique=True)
                self.positions[rest] = UNWRITTEN

    def _slots(self, batch: Batch, row: int) -> np.ndarray:
        """Where a row's tokens are, by its block table."""
        position = np.arange(batch.seq_lens[row])
        block = batch.block_table[row, position // self.block_size].astype(np.int64)
        if (block < 0).any():
            raise ValueError(f"row {row}: its block table ends before its {batch.seq_lens[row]} tokens")
        return block * self.block_size + position % self.block_size

    def _read(self, batch: Batch, row: int, num_tokens: int) -> np.ndarray:
        """The slots of a row's first tokens, all of which must have been written."""
        slots = self._slots(batch, row)[:num_tokens]
        wrong = np.flatnonzero(self.positions[slots] != np.arange(num_tokens))
        if len(wrong):
            position, slot = int(wrong[0]), int(slots[wrong[0]])
            held = int(self.positions[slot])
            holds = "nothing" if held == UNWRITTEN else f"position {held}"
            raise ValueError(f"row {row} reads slot {slot} for position {position}, and it holds {holds}")
        return slots

    def _seed(self, batch: Batch, row: int, num_tokens: int) -> int:
        return seed_of(self.prints[self._read(batch, row, num_tokens)])

    def _sampled(self, batch: Batch) -> StepOutput:
        sampling = batch.sampling
        token_ids = np.full(batch.num_rows, NOT_SAMPLED, np.int32)
        scores = prompt_scores = None
        rows = np.flatnonzero(sampling.samples)
        if len(rows):
            logits = np.stack([self.model.logits(self._seed(batch, r, int(batch.seq_lens[r]))) for r in rows.tolist()])
            arrays, stages = rows_that_sample(sampling, batch.seq_lens)
            arrays = arrays._replace(history=self._known(arrays.history))
            stages = stages._replace(candidates=self.vocab_size)  # all of them: NumPy sorts
            token_ids[rows] = sample_rows(logits, arrays, stages, self.num_token_ids)
            num_top = int(sampling.num_logprobs[rows].max())
            if num_top >= 0:
                scores = _scores(logits, token_ids[rows], num_top).at_rows(rows, batch.num_rows)
        if len(batch.score_index):
            row_of = np.searchsorted(batch.query_start, batch.score_index, side="right") - 1
            logits = np.stack(
                [
                    self.model.logits(self._seed(batch, int(row), int(batch.positions[index]) + 1))
                    for row, index in zip(row_of, batch.score_index, strict=True)
                ]
            )
            prompt_scores = _scores(logits, batch.score_target, batch.score_num_top)
        return StepOutput(token_ids, scores, prompt_scores)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def fingerprints(before: int, first: int, token_ids: Sequence[int]) -> np.ndarray:  # u64 [T]
    """Of a sequence up to each of some tokens, the first of which stands at position `first`."""
    prints = []
    for position, token_id in enumerate(token_ids, start=first):
        before = ((before ^ (token_id + 1)) * 0xBF58476D1CE4E5B9 + position) & _WORD
        before ^= before >> 29
        prints.append(before)
    return np.array(prints, np.uint64)


def seed_of(prints: np.ndarray) -> int:  # u64 [T]
    """What a sequence's logits are made from: all of its fingerprints, in their places."""
    with np.errstate(over="ignore"):
        places = np.arange(1, len(prints) + 1, dtype=np.uint64) * _GOLDEN
        return int(np.sum(_mixed(prints + places), dtype=np.uint64))


def _mixed(x: np.ndarray) -> np.ndarray:  # u64
    """The last rounds of splitmix64 (Steele et al., OOPSLA 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _scores(logits: np.ndarray, token_ids: np.ndarray, num_top: int) -> TokenScores:
    return TokenScores(*token_log_probs(logits, np.where(is_usable(logits), token_ids, -1), num_top))
