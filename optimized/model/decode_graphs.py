"""Steps of decode rows alone, captured once for each of a few numbers of rows, and replayed.

A step of fewer rows is padded: rows without keys, whose keys and values go nowhere, and whose logits nobody reads. That
changes no bit of the others where products are those of few rows, whose bits depend on no company; above that it is as
if the batch were larger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from optimized.device import Tensor, part_of
from optimized.kernels.known_tokens import known_tokens
from optimized.model.forward import Model
from optimized.model.layer import Positions, RowGroup
from optimized.model.machine import Machine
from reference.serving.runner import Batch

COLUMNS = 4  # of a row's integers: token, position, slot, length; then its blocks
MOST_ROWS = 512


@dataclass(frozen=True)
class _Graph:
    integers: Tensor  # i32 [(COLUMNS + M) R], column after column
    query_start: Tensor  # i32 [R + 1], which launches read: a graph keeps alive nothing that was made outside it
    logits: Tensor  # f32 [R, V]
    replay: Callable[[], None]


def bucket_of(num_rows: int) -> int:
    """Rows of the graph that a step of so many is padded to: at most a third more, and 7."""
    step = 8 if num_rows <= 64 else 32 if num_rows <= 256 else 64
    return 1 << (num_rows - 1).bit_length() if num_rows <= 8 else -(-num_rows // step) * step


def buckets(most: int) -> list[int]:
    """All there are for up to so many rows."""
    return sorted({bucket_of(rows) for rows in range(1, min(most, MOST_ROWS) + 1)})


class DecodeGraphs:
    def __init__(self, machine: Machine, model: Model, tables: tuple[Tensor, Tensor], num_blocks: int) -> None:
        """tables: cos and sin. num_blocks: of the longest sequence."""
        self._machine, self._model, self._tables, self._width = machine, model, tables, num_blocks
        self._graphs: dict[int, _Graph] = {}
        self._logits: Tensor | None = None  # f32 [most rows so far, V], of every graph that it is large enough for
        self.num_replays = 0

    def integers_of(self, batch: Batch, token_ids: np.ndarray) -> np.ndarray:
        """What `run` reads of a batch, padded: i32 [(COLUMNS + M) R]. token_ids: named by `named_by`."""
        num_rows = batch.num_rows
        padded = np.zeros((COLUMNS + self._width, bucket_of(num_rows)), np.int32)
        for column, values in zip(
            padded, (token_ids, batch.positions, batch.slot_mapping, batch.seq_lens), strict=False
        ):
            column[:num_rows] = values
        padded[2, num_rows:] = -1
        table = np.full((padded.shape[1], self._width), -1, np.int32)
        table[:num_rows, : batch.block_table.shape[1]] = batch.block_table
        padded[COLUMNS:] = table.reshape(padded[COLUMNS:].shape)
        return padded.reshape(-1)

    def run(self, integers: Tensor, previous: Tensor, num_rows: int) -> Tensor:  # f32 [num_rows, V]
        """Logits, until the next run. integers: those of the batch, on the device."""
        bucket = bucket_of(num_rows)
        graph = self._graphs.get(bucket) or self.captured(bucket)
        self._machine.copy(integers, graph.integers)
        token_ids = part_of(graph.integers, (bucket,), (1,))
        known_tokens(token_ids, previous, missing=0, out=token_ids)
        graph.replay()
        self.num_replays += 1
        vocab_size = graph.logits.shape[1]
        return part_of(graph.logits, (num_rows, vocab_size), (vocab_size, 1))

    @property
    def num_graphs(self) -> int:
        return len(self._graphs)

    def has(self, bucket: int) -> bool:
        return bucket in self._graphs

    def captured(self, bucket: int) -> _Graph:
        """The graph of so many rows, captured now."""
        integers = self._machine.device.empty(((COLUMNS + self._width) * bucket,), "int32")
        query_start = self._machine.device.empty((bucket + 1,), "int32")
        self._machine.fill(integers, _idle(bucket, self._width))
        self._machine.fill(query_start, np.arange(bucket + 1, dtype=np.int32))

        def column(number: int) -> Tensor:
            return part_of(integers, (bucket,), (1,), number * bucket)

        table = part_of(integers, (bucket, self._width), (self._width, 1), COLUMNS * bucket)
        group = RowGroup(0, bucket, 1, query_start, column(3), table)
        logits = self._logits_of(bucket)

        def step() -> None:
            stream = self._model.hidden(column(0), Positions(column(1), column(2), *self._tables), (group,))
            self._model.logits(stream, None, logits)

        self._graphs[bucket] = _Graph(integers, query_start, logits, self._machine.capture(step))
        return self._graphs[bucket]

    def _logits_of(self, num_rows: int) -> Tensor:
        vocab_size = self._model.config.vocab_size
        if self._logits is None or self._logits.shape[0] < num_rows:
            self._logits = self._machine.device.empty((num_rows, vocab_size), "float32")
        return part_of(self._logits, (num_rows, vocab_size), (vocab_size, 1))


def _idle(bucket: int, width: int) -> np.ndarray:
    """Rows without keys, that write nothing."""
    rows = np.zeros((COLUMNS + width, bucket), np.int32)
    rows[2], rows[COLUMNS:] = -1, -1
    return rows.reshape(-1)
