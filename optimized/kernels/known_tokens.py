"""Tokens that rows of the previous batch drew, put in their places on a GPU: nothing waits for the host to see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute

from optimized.arguments import INT32, output, sizes_of
from optimized.compile.kernel import Kernel
from optimized.device import Tensor, device_of
from optimized.kernels.rows import vector_of

THREADS = 256


@dataclass(frozen=True)
class KnownTokens(Kernel):
    """A thread an id."""

    def arguments(self) -> tuple[Any, ...]:
        num_tokens = cute.sym_int()
        token_ids, out = (vector_of("int32", num_tokens) for _ in range(2))
        return token_ids, vector_of("int32", cute.sym_int()), cutlass.Int32(0), out

    @cute.jit
    def __call__(
        self,
        mTokenIds: cute.Tensor,  # i32 [T]
        mPrevious: cute.Tensor,  # i32 [R]
        missing: cutlass.Int32,
        mOut: cute.Tensor,  # i32 [T]
        stream: Any,
    ) -> None:
        grid = cute.ceil_div(mTokenIds.shape[0], THREADS)
        self.kernel(mTokenIds, mPrevious, missing, mOut).launch(grid=[grid, 1, 1], block=[THREADS, 1, 1], stream=stream)

    @cute.kernel
    def kernel(self, mTokenIds: cute.Tensor, mPrevious: cute.Tensor, missing: cutlass.Int32, mOut: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        place = block * THREADS + thread
        if place < mTokenIds.shape[0]:
            token = mTokenIds[place]
            if token < 0:
                row = -1 - token
                token = missing
                if row < mPrevious.shape[0]:
                    drawn = mPrevious[row]
                    if drawn >= 0:
                        token = drawn
            mOut[place] = token


def known_tokens(
    token_ids: Tensor,  # i32 [T]; -1 - r means: what row r of the previous batch sampled
    previous: Tensor,  # i32 [R]; negative where that row drew no token
    *,
    missing: int,
    out: Tensor | None = None,  # i32 [T]
) -> Tensor:  # i32 [T]: `out`, or new memory
    """Every token by its id; `missing` for one that row r did not draw. out may be token_ids.

    Errors: ValueError, TypeError for tensors that do not fit.
    """
    device = device_of(token_ids)
    (num_tokens,) = sizes_of("known_tokens", "token_ids", token_ids, ("T",), INT32)
    sizes_of("known_tokens", "previous", previous, ("R",), INT32)
    out = output("known_tokens", "out", out, device, (num_tokens,), "int32")
    if num_tokens:
        device.run(KnownTokens(), token_ids, previous, missing, out)
    return out
