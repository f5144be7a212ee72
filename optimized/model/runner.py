"""The optimized panel behind an engine: batches in, sampled tokens out, nothing waited for in between.

`submit` puts a batch's arrays on the device and makes its launches, which follow those of the batch before; tokens that
that one sampled are taken from where they are. `result` waits for the few numbers that come back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from optimized.device import Tensor, part_of
from optimized.kernels.known_tokens import known_tokens
from optimized.kernels.token_log_probs import token_log_probs
from optimized.model.choose import Asked, asked, choose, scores_from, top_of
from optimized.model.decode_graphs import MOST_ROWS, DecodeGraphs, buckets
from optimized.model.forward import Model
from optimized.model.layer import Positions
from optimized.model.machine import Machine, Read
from optimized.model.step import arrays_of, groups_of, named_by, row_groups, rows_sampled
from optimized.model.stream import Stream
from optimized.model.warm_up import counts, mixed_steps, sampled_steps, step_of
from optimized.model.weights import allocated, load
from reference.model.config import ModelConfig
from reference.model.rope_table import rope_table
from reference.serving.in_flight import InFlight
from reference.serving.runner import NOT_SAMPLED, Batch, StepOutput, TokenScores

BLOCK_SIZE = 128  # tokens of a KV block
LOGIT_ROWS = 32  # of a prompt's tokens that are scored at once


@dataclass(frozen=True)
class _Done:
    """A batch on its way back."""

    num_rows: int
    rows: np.ndarray  # those that sample
    has_scores: bool
    read: Read


class DeviceRunner:
    """A Qwen3 model as a `Runner`. Logits are float32; keys and values are held in the model's dtype."""

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, np.ndarray],  # a checkpoint's, by Hugging Face name
        machine: Machine,
        *,
        num_token_ids: int,
        max_model_len: int,
        num_blocks: int,
        block_size: int = BLOCK_SIZE,
    ) -> None:
        """num_token_ids: ids from there on are padding, never sampled. max_model_len: tokens of the longest sequence.

        Errors: UnsupportedModel; those of `load`.
        """
        self.vocab_size, self.num_blocks, self.block_size = config.vocab_size, num_blocks, block_size
        self._machine, self._num_token_ids = machine, num_token_ids
        empty, dtype = machine.device.empty, config.dtype.name
        tables = rope_table(config.rope, config.head_dim, max_model_len)
        with machine.launching():
            weights = allocated(config, empty)
            load(weights, config, tensors, machine.fill)
            self.tables = empty(tables[0].shape, "float32"), empty(tables[1].shape, "float32")  # cos and sin
            for place, table in zip(self.tables, tables, strict=True):
                machine.fill(place, table)
            shape = (num_blocks, config.num_kv_heads, block_size, config.head_dim)
            kv = [(empty(shape, dtype), empty(shape, dtype)) for _ in weights.layers]
        self.model = Model(machine.device, config, weights, kv)
        self._max_model_len, self._most_blocks = max_model_len, -(-max_model_len // block_size)
        self.graphs = DecodeGraphs(machine, self.model, self.tables, self._most_blocks)
        self._in_flight = InFlight[_Done]()
        self._launches = 0  # steps that are none of the graphs'
        self.reset()

    def counts(self) -> list[tuple[str, str, int]]:
        """What a server tells of this runner: names, what they count, and how many so far. From any thread."""
        return [
            ("decode_graph_replays", "Steps of decode rows alone, replayed as CUDA graphs.", self.graphs.num_replays),
            ("other_steps", "Steps launched kernel by kernel, most with prompts.", self._launches),
            ("decode_graphs", "CUDA graphs captured, one for each bucket of rows.", self.graphs.num_graphs),
        ]

    def reset(self) -> None:
        self._in_flight.clear()
        self._previous = self._machine.device.empty((0,), "int32")  # what the batch before sampled
        self._row_of = np.empty(0, np.int32)  # and the places of its rows in it

    def warm_up(self, max_rows: int, max_tokens: int, told: Callable[[int, int], None]) -> None:
        """Take the steps of `warm_up`, and capture the graphs of up to so many rows, so that no request waits for that.
        max_tokens: of a step. told: how many of how many are done."""
        room = min(max_tokens, self.num_blocks * self.block_size, self._max_model_len)
        batches = [*sampled_steps(self.block_size), *(step_of([count], self.block_size) for count in counts(room))]
        batches += mixed_steps(min(max_rows, max_tokens), self.block_size, self.num_blocks)
        sizes = [size for size in reversed(buckets(max_rows)) if not self.graphs.has(size)]  # the largest memory first
        for done, size in enumerate(sizes):
            told(done, len(sizes) + len(batches))
            with self._machine.launching():
                self.graphs.captured(size)
        for done, batch in enumerate(batches, start=len(sizes)):
            told(done, len(sizes) + len(batches))
            self.result(self.submit(batch))
        told(len(sizes) + len(batches), len(sizes) + len(batches))
        self.reset()
        self._launches = self.graphs.num_replays = 0

    def submit(self, batch: Batch) -> int:
        self._in_flight.check_room()
        batch.check_rows()
        self._check(batch)
        with self._machine.launching():
            return self._in_flight.add(self._started(batch))

    def _check(self, batch: Batch) -> None:
        """What kernels trust: one number too large would cost all work of this process on the device.

        Errors: ValueError."""
        bounds = {
            "positions": (batch.positions, self._max_model_len),
            "slot_mapping": (batch.slot_mapping, self.num_blocks * self.block_size),
            "token_ids": (batch.token_ids, self.vocab_size),
            "block_table": (batch.block_table, self.num_blocks),
            "seq_lens": (batch.seq_lens, self._max_model_len + 1),
        }
        for name, (values, end) in bounds.items():
            if values.size and int(values.max()) >= end:
                raise ValueError(f"{name} of a batch holds {int(values.max())}; it must be less than {end}")
        if batch.block_table.shape[1] > self._most_blocks:
            raise ValueError(
                f"block_table of a batch is {batch.block_table.shape[1]} blocks wide; sequences have up to "
                f"{self._most_blocks}"
            )

    def _started(self, batch: Batch) -> _Done:
        rows = np.flatnonzero(batch.sampling.samples)
        of_rows = asked(batch.sampling, batch.seq_lens, self._row_of)
        row_of = rows_sampled(batch)
        forward = self._replayed if self._is_replayed(batch, rows) else self._launched
        tensors, logits, prompt_scores = forward(batch, rows, of_rows)
        wanted: list[Tensor] = []
        has_scores = False
        previous = self._machine.device.empty((0,), "int32")
        if logits is not None:
            previous, scores = choose(self._machine, logits, of_rows, tensors, self._previous, self._num_token_ids)
            has_scores = scores is not None
            wanted += [previous, *(scores or ())]
        self._previous, self._row_of = previous, row_of
        read = self._machine.read([*wanted, *prompt_scores])
        return _Done(batch.num_rows, rows, has_scores, read)

    def result(self, ticket: int) -> StepOutput:
        done = self._in_flight.take(ticket)
        arrays = done.read()
        token_ids, scores, prompt_scores = np.full(done.num_rows, NOT_SAMPLED, np.int32), None, None
        if len(done.rows):
            token_ids[done.rows] = arrays.pop(0)
        if done.has_scores:
            scores = scores_from(arrays[:4]).at_rows(done.rows, done.num_rows)
            del arrays[:4]
        if arrays:
            parts = [scores_from(arrays[first : first + 4]) for first in range(0, len(arrays), 4)]
            fields = "logprobs", "ranks", "top_ids", "top_logprobs"
            prompt_scores = TokenScores(*(np.concatenate([getattr(part, name) for part in parts]) for name in fields))
        return StepOutput(token_ids, scores, prompt_scores)

    def _is_replayed(self, batch: Batch, rows: np.ndarray) -> bool:
        """Is it one of decode rows alone, all of which sample?"""
        is_decode = batch.num_decode_rows == batch.num_rows == len(rows)
        return is_decode and 0 < batch.num_rows <= MOST_ROWS and not len(batch.score_index)

    def _replayed(
        self, batch: Batch, _: np.ndarray, of_rows: Asked
    ) -> tuple[Mapping[str, Tensor], Tensor, list[Tensor]]:
        token_ids = named_by(batch.token_ids, self._row_of)
        arrays = {"integers": self.graphs.integers_of(batch, token_ids), **of_rows.arrays}
        tensors = self._machine.put(arrays)
        return tensors, self.graphs.run(tensors["integers"], self._previous, batch.num_rows), []

    def _launched(
        self, batch: Batch, rows: np.ndarray, of_rows: Asked
    ) -> tuple[Mapping[str, Tensor], Tensor | None, list[Tensor]]:
        self._launches += 1
        groups = groups_of(batch.query_start)
        arrays = {**arrays_of(batch, groups, self._row_of, self._most_blocks), **of_rows.arrays}
        arrays |= {"sampled": batch.query_start[1:][rows] - 1}
        arrays |= {"score_index": batch.score_index, "score_target": batch.score_target}
        tensors = self._machine.put(arrays)
        token_ids = tensors["token_ids"]
        known_tokens(token_ids, self._previous, missing=0, out=token_ids)
        positions = Positions(tensors["positions"], tensors["slots"], *self.tables)
        stream = self.model.hidden(token_ids, positions, row_groups(groups, tensors))
        prompt_scores = self._prompt_scores(batch, stream, tensors)
        return tensors, self.model.logits(stream, tensors["sampled"]) if len(rows) else None, prompt_scores

    def _prompt_scores(self, batch: Batch, stream: Stream, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        scores: list[Tensor] = []
        for first in range(0, len(batch.score_index), LOGIT_ROWS):
            count = min(LOGIT_ROWS, len(batch.score_index) - first)
            index, target = (part_of(tensors[name], (count,), (1,), first) for name in ("score_index", "score_target"))
            scores += token_log_probs(self.model.logits(stream, index), target, top_of(batch.score_num_top))
        return scores
