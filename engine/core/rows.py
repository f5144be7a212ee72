"""From a plan to a batch: the arrays that a runner reads.

What does not change while a sequence runs (its sampling parameters, its block table so far) stands in tables with one
slot for each running sequence, written when it is admitted; a batch gathers its rows from them.
"""

from __future__ import annotations

from array import array

import numpy as np

from engine.core.sequence import Sequence, penalizes
from reference.serving.runner import Batch, Sampling

_COLUMNS = {
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "repetition_penalty": np.float32,
    "presence_penalty": np.float32,
    "frequency_penalty": np.float32,
}
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_INT32_MAX = int(np.iinfo(np.int32).max)
_NOTHING_I32 = np.empty(0, np.int32)


class Rows:
    """Slots for running sequences, and the making of batches."""

    def __init__(
        self, max_num_seqs: int, max_model_len: int, block_size: int, num_token_ids: int, eos_token_ids: frozenset[int]
    ) -> None:
        self._block_size = block_size
        self._mask_words = -(-num_token_ids // 32)
        self._eos_token_ids = eos_token_ids
        self._slots = list(range(max_num_seqs - 1, -1, -1))  # free ones, a stack
        self._tables = np.full((max_num_seqs, -(-max_model_len // block_size)), -1, np.int32)
        self._table_lens = [0] * max_num_seqs  # blocks written to `_tables`
        self._columns = {name: np.zeros(max_num_seqs, dtype) for name, dtype in _COLUMNS.items()}
        self._seed = np.zeros((max_num_seqs, 2), np.uint32)
        self._sample_index = np.zeros(max_num_seqs, np.int32)
        self._num_logprobs = np.full(max_num_seqs, -1, np.int32)

    def enter(self, sequence: Sequence) -> None:
        """A sequence was admitted: it takes a slot."""
        slot = sequence.slot = self._slots.pop()
        params = sequence.params
        for name, column in self._columns.items():
            column[slot] = min(getattr(params, name), _INT32_MAX if name == "top_k" else _FLOAT32_MAX)
        self._seed[slot] = params.seed & 0xFFFFFFFF, params.seed >> 32
        self._sample_index[slot] = sequence.index
        self._num_logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        self._table_lens[slot] = 0

    def leave(self, sequence: Sequence) -> None:
        """A sequence was preempted, or has ended."""
        self._slots.append(sequence.slot)
        sequence.slot = -1

    def batch(self, rows: list[tuple[Sequence, int]]) -> Batch:
        """The batch of a plan, in whose order sequences with one token come first. `num_computed` counts the plan."""
        sequences = [sequence for sequence, _ in rows]
        counts = np.array([num_tokens for _, num_tokens in rows], np.int32)
        seq_lens = np.array([sequence.num_computed for sequence in sequences], np.int32)
        query_start = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(counts, out=query_start[1:])
        row_of_token = np.repeat(np.arange(len(rows)), counts)
        positions = (np.arange(query_start[-1]) - query_start[row_of_token + 1] + seq_lens[row_of_token]).astype(
            np.int32
        )
        block_table = self._block_table(sequences)
        block = block_table[row_of_token, positions // self._block_size].astype(np.int64)
        score_index, score_target, score_num_top = self._scores(rows, query_start)
        return Batch(
            token_ids=self._token_ids(rows),
            positions=positions,
            query_start=query_start,
            seq_lens=seq_lens,
            block_table=block_table,
            slot_mapping=block * self._block_size + positions % self._block_size,
            sampling=self._sampling(sequences),
            score_index=score_index,
            score_target=score_target,
            score_num_top=score_num_top,
        )

    def _token_ids(self, rows: list[tuple[Sequence, int]]) -> np.ndarray:
        token_ids: list[int] = []
        for sequence, num_tokens in rows:
            tokens, end = sequence.tokens, sequence.num_computed
            if end <= len(tokens):
                token_ids += (tokens[end - 1],) if num_tokens == 1 else tokens[end - num_tokens : end]
            else:  # the last token is still in flight
                token_ids += tokens[end - num_tokens :]
                token_ids.append(-1 - sequence.row)
        return np.array(token_ids, np.int32)

    def _block_table(self, sequences: list[Sequence]) -> np.ndarray:
        longest = 0
        for sequence in sequences:
            written, blocks = self._table_lens[sequence.slot], sequence.blocks
            longest = max(longest, len(blocks))
            if written < len(blocks):
                self._tables[sequence.slot, written : len(blocks)] = blocks[written:]
                self._table_lens[sequence.slot] = len(blocks)
        slots = [sequence.slot for sequence in sequences]
        table = self._tables[slots, :longest]
        lens = np.array([self._table_lens[slot] for slot in slots])
        table[np.arange(longest) >= lens[:, None]] = -1  # what an earlier owner of the slot left
        return table

    def _sampling(self, sequences: list[Sequence]) -> Sampling:
        slots = np.array([sequence.slot for sequence in sequences], np.int64)
        samples = np.array([sequence.num_lacking == 0 for sequence in sequences], np.bool_)
        # What most sequences have none of is looked for in the others alone.
        special = [(row, sequence) for row, sequence in enumerate(sequences) if not sequence.is_plain and samples[row]]
        masks = [(row, sequence.mask) for row, sequence in special if sequence.mask is not None]
        mask_row = np.full(len(slots), -1, np.int32)
        mask_row[[row for row, _ in masks]] = np.arange(len(masks))
        history, history_start, prompt_lens = _histories(special, len(slots))
        biases = {row: sequence.params.logit_bias for row, sequence in special}
        return Sampling(
            samples=samples,
            **{name: column[slots] for name, column in self._columns.items()},
            seed=self._seed[slots],
            sample_index=self._sample_index[slots],
            num_logprobs=np.where(samples, self._num_logprobs[slots], -1).astype(np.int32),
            history=history,
            history_start=history_start,
            prompt_lens=prompt_lens,
            bias_ids=_padded({row: [*bias.keys()] for row, bias in biases.items()}, len(slots), -1, np.int32),
            bias=_padded({row: [*bias.values()] for row, bias in biases.items()}, len(slots), 0.0, np.float32),
            banned_ids=_padded({row: self._banned(one) for row, one in special}, len(slots), -1, np.int32),
            mask=np.stack([mask for _, mask in masks]) if masks else np.empty((0, self._mask_words), np.uint32),
            mask_row=mask_row,
        )

    def _banned(self, sequence: Sequence) -> list[int]:
        """What would end the answer, before `min_tokens` were sampled."""
        if sequence.num_output >= sequence.params.min_tokens:
            return []
        return sorted(self._eos_token_ids | set(sequence.params.stop_token_ids))

    @staticmethod
    def _scores(rows: list[tuple[Sequence, int]], query_start: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Which prompt tokens are to be judged: token i of a batch says how likely the one after it was."""
        index: list[int] = []
        target: list[int] = []
        num_top = 0
        for (sequence, num_tokens), start in zip(rows, query_start.tolist(), strict=False):
            if sequence.params.prompt_logprobs is None or sequence.num_scored >= sequence.num_prompt:
                continue
            first = sequence.num_computed - num_tokens
            begin, end = sequence.num_scored, min(sequence.num_computed + 1, sequence.num_prompt)
            index += range(start + begin - 1 - first, start + end - 1 - first)
            target += sequence.tokens[begin:end]
            sequence.num_scored = max(begin, end)
            num_top = max(num_top, sequence.params.prompt_logprobs)
        return np.array(index, np.int32), np.array(target, np.int32), num_top


def _histories(special: list[tuple[int, Sequence]], num_rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens of those whose parameters penalize what occurred."""
    lens, prompt_lens = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
    history = array("i")
    for row, sequence in special:
        if not penalizes(sequence.params):
            continue
        # The other penalties are for what was put out alone.
        begin = 0 if sequence.params.repetition_penalty != 1 else sequence.num_prompt
        history += sequence.tokens[begin:]
        if sequence.num_pending:
            history.append(-1 - sequence.row)
        lens[row], prompt_lens[row] = sequence.num_output + sequence.num_prompt - begin, sequence.num_prompt - begin
    start = np.zeros(num_rows + 1, np.int32)
    np.cumsum(lens, out=start[1:])
    return np.frombuffer(history, np.int32), start, prompt_lens


def _padded(lists: dict[int, list], num_rows: int, padding: float, dtype: type) -> np.ndarray:
    """Lists of some rows as a rectangle of all rows."""
    width = max(map(len, lists.values()), default=0)
    array: np.ndarray = np.full((num_rows, width), padding, dtype)
    for row, values in lists.items():
        array[row, : len(values)] = values
    return array
