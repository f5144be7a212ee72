"""Products by cuBLAS, through torch, with sums in float32 throughout.

torch's usual setting lets cuBLAS split a sum over k and round its parts to bfloat16 before it adds them: a second
rounding. It is a setting of the whole process, which is the user's; cuBLAS asks for it when a product is launched, on
the thread that launches, so it is off here for just that long, and then what it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from optimized.device import Tensor


def cublas_product(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, out: Tensor) -> None:
    """out = x W^T (+ bias) (+ residual), on the current stream: of x's dtype with one rounding, or the float32 sums.

    cuBLAS rounds a product before it adds a matrix to it (measured: H200, CUDA 13). So where a residual is added, or a
    bias of another dtype, its float32 sums are written, and read again by the sum that rounds.
    """
    import torch

    with sums_in_float32():
        if residual is None and (bias is None or bias.dtype == x.dtype == out.dtype):
            if bias is None and out.dtype == x.dtype:
                torch.mm(x, weight.t(), out=out)
            elif bias is None:
                torch.mm(x, weight.t(), out_dtype=out.dtype, out=out)
            else:
                torch.addmm(bias, x, weight.t(), out=out)
            return
        sums = torch.mm(x, weight.t(), out_dtype=torch.float32)
        added = [one for one in (bias, residual) if one is not None]
        for one in added[:-1]:
            sums += one
        torch.add(sums, added[-1], out=out)


@contextmanager
def sums_in_float32() -> Iterator[None]:
    """Inside, on this thread, no sum of a product is split into parts that are rounded to 16 bits, nor is any
    accumulated in 16 bits."""
    import torch

    settings = torch.backends.cuda.matmul
    bf16 = settings.allow_bf16_reduced_precision_reduction, settings.allow_bf16_reduced_precision_reduction_split_k
    fp16 = settings.allow_fp16_reduced_precision_reduction, settings.allow_fp16_reduced_precision_reduction_split_k
    accumulation = settings.allow_fp16_accumulation
    settings.allow_bf16_reduced_precision_reduction = False, bf16[1]
    settings.allow_fp16_reduced_precision_reduction = False, fp16[1]
    settings.allow_fp16_accumulation = False
    try:
        yield
    finally:
        settings.allow_bf16_reduced_precision_reduction = bf16
        settings.allow_fp16_reduced_precision_reduction = fp16
        settings.allow_fp16_accumulation = accumulation
