"""A GPU that torch knows, as a runner's machine: pinned memory, a stream for copies, CUDA graphs.

Launches go to one stream. What a step reads goes to the device on another one, so that it is there before the step
before it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from optimized.device import Device, Tensor, device_of
from optimized.model.machine import Read
from reference.formats import Array
from reference.serving.runner import DeviceLost, Refused

STEPS = 3  # whose arrays are kept: two in flight, and one that is written
ALIGNMENT = 256  # bytes of an array in a step's memory
CHUNK = 1 << 26  # bytes of a weight that are copied at once


class GpuMachine:
    def __init__(self, index: int = 0) -> None:
        """Errors: Refused without a GPU."""
        import torch

        if not torch.cuda.is_available():
            raise Refused("the optimized panel computes on an NVIDIA GPU, and torch finds none here")
        self._torch = torch
        self._where = torch.device("cuda", index)
        self.device: Device = device_of(torch.empty(1, device=self._where))
        self._launches = torch.cuda.Stream(self._where)
        self._copies = torch.cuda.Stream(self._where)
        self._pool = torch.cuda.graph_pool_handle()  # graphs run one after another: they share what memory they need
        self._steps = [_Step(torch, self._where) for _ in range(STEPS)]
        self._num_steps = 0
        self._chunks = [torch.empty(CHUNK, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._chunk_events: list[Any] = [None, None]
        self._num_chunks = 0

    @contextmanager
    def launching(self) -> Iterator[None]:
        try:
            with self._torch.cuda.stream(self._launches):
                yield
        except Exception as error:
            self._require_alive(error)
            raise

    def _require_alive(self, error: Exception) -> None:
        """After an error: does the GPU still take work of this process? Some end all of it. Errors: DeviceLost."""
        try:
            self._torch.cuda.synchronize(self._where)
        except Exception as found:
            cause = str(found).partition("\n")[0]
            raise DeviceLost(f"the GPU takes no more work of this process: {cause}") from error

    def fill(self, tensor: Tensor, values: Array) -> None:
        """Through pinned memory, half of which is written while the other half is copied."""
        if not values.size:
            return
        source = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        place = self._bytes_of(tensor)
        for first in range(0, len(source), CHUNK):
            part = source[first : first + CHUNK]
            number = self._num_chunks % 2
            self._num_chunks += 1
            if self._chunk_events[number] is not None:
                self._chunk_events[number].synchronize()
            chunk = self._chunks[number][: len(part)]
            chunk.numpy()[:] = part
            place[first : first + len(part)].copy_(chunk, non_blocking=True)
            self._chunk_events[number] = self._launches.record_event()

    def _bytes_of(self, tensor: Tensor) -> Tensor:
        if not tensor.is_contiguous():
            raise ValueError(f"a tensor of shape {list(tensor.shape)} is filled whose elements lie apart")
        return tensor.view(-1).view(self._torch.uint8)

    def put(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        step = self._steps[self._num_steps % STEPS]
        self._num_steps += 1
        return step.put(arrays, self._copies, self._launches)

    def copy(self, source: Tensor, out: Tensor) -> None:
        out.copy_(source, non_blocking=True)

    def read(self, tensors: Sequence[Tensor]) -> Read:
        pinned = [self._torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in tensors]
        for place, tensor in zip(pinned, tensors, strict=True):
            place.copy_(tensor, non_blocking=True)
        done = self._launches.record_event()
        self._steps[(self._num_steps - 1) % STEPS].used_until(done)

        def wait() -> list[Array]:
            try:
                done.synchronize()
            except Exception as error:
                self._require_alive(error)
                raise
            return [place.numpy().copy() for place in pinned]

        return wait

    def capture(self, launches: Callable[[], None]) -> Callable[[], None]:
        launches()  # whatever is compiled, loaded or measured at first use, is so before
        self._launches.synchronize()
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph, pool=self._pool, stream=self._launches):
            launches()
        return graph.replay

    def free_bytes(self) -> int:
        free, _ = self._torch.cuda.mem_get_info(self._where)
        return int(free)


class _Step:
    """Memory for the arrays of one step, on the host and on the device, as large as any so far needed."""

    def __init__(self, torch: Any, where: Any) -> None:
        self._torch, self._where = torch, where
        self._host: Any = None
        self._device: Any = None
        self._copied: Any = None
        self._used: Any = None  # an event behind the last launch that reads it

    def used_until(self, event: Any) -> None:
        self._used = event

    def put(self, arrays: Mapping[str, Array], copies: Any, launches: Any) -> dict[str, Tensor]:
        starts, size = {}, 0
        for name, array in arrays.items():
            starts[name] = size
            size += -(-max(array.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        if self._copied is not None:
            self._copied.synchronize()
        if self._host is None or self._host.numel() < size:
            self._host = self._torch.empty(2 * size, dtype=self._torch.uint8, pin_memory=True)
            self._device = self._torch.empty(2 * size, dtype=self._torch.uint8, device=self._where)
            copies.wait_stream(launches)  # which may have had that memory
        if self._used is not None:  # after an error, steps may still run that nobody waits for
            copies.wait_event(self._used)
        host = self._host.numpy()
        for name, array in arrays.items():
            host[starts[name] : starts[name] + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        with self._torch.cuda.stream(copies):
            self._device[:size].copy_(self._host[:size], non_blocking=True)
            self._copied = copies.record_event()
        launches.wait_event(self._copied)
        return {name: self._tensor(array, starts[name]) for name, array in arrays.items()}

    def _tensor(self, array: Array, start: int) -> Tensor:
        dtype = getattr(self._torch, str(array.dtype))
        return self._device[start : start + array.nbytes].view(dtype).view(array.shape)
