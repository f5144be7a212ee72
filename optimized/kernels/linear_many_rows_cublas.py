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
    """out = x W^T (+ bias) or (+ residual), both with one rounding, on the current stream. Errors: ValueError for both,
    which torch cannot ask cuBLAS for."""
    import torch

    if bias is not None and residual is not None:
        raise ValueError("cublas adds a bias or a residual, not both in one rounding")
    added = residual if bias is None else bias
    if added is not None and added.dtype != x.dtype:
        raise ValueError(f"cublas adds a bias of x's dtype, {x.dtype}; this one is {added.dtype}")
    with sums_in_float32():
        if added is None:
            torch.mm(x, weight.t(), out=out)
        else:
            torch.addmm(added, x, weight.t(), out=out)


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
