"""Optimized panels that are wrong, each in one way: the reference's result on tensors of host memory, and a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch

from reference.formats import Array
from reference.kernels.residual import residual_add
from reference.kernels.rms_norm import add_rms_norm as reference_add_rms_norm
from reference.kernels.rms_norm import rms_norm as reference_rms_norm
from reference.kernels.router_top_k import router_top_k as reference_router_top_k

Tensor = Any


def to_numpy(tensor: Tensor) -> Array:
    """bf16 crosses as bits: torch's bridge does not know ml_dtypes."""
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.contiguous().numpy()


def to_torch(array: Array) -> Tensor:
    array = np.ascontiguousarray(array)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> Tensor:
    """Nothing is wrong with this one."""
    return out.copy_(to_torch(reference_rms_norm(to_numpy(x), to_numpy(weight), eps)))


def spoilt(fault: Callable[[Tensor, Tensor], None]) -> Callable[..., Tensor]:
    """rms_norm, and then the fault, which is given what was computed and the input."""

    def function(x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> Tensor:
        rms_norm(x, weight, eps, out=out)
        fault(out, x)
        return out

    return function


@spoilt
def one_wrong_lane(out: Tensor, x: Tensor) -> None:
    out[:, 37] *= 1.02


@spoilt
def one_row_off(out: Tensor, x: Tensor) -> None:
    out[1:] = out[:-1].clone()


@spoilt
def zeroed_output(out: Tensor, x: Tensor) -> None:
    out.zero_()


@spoilt
def nan_where_a_number_is(out: Tensor, x: Tensor) -> None:
    out[2, 5] = torch.nan


@spoilt
def number_where_nan_is(out: Tensor, x: Tensor) -> None:
    out[out.isnan()] = 1.0


@spoilt
def input_scribbled_on(out: Tensor, x: Tensor) -> None:
    x[0, 0] = 1.0


@spoilt
def guard_behind_overwritten(out: Tensor, x: Tensor) -> None:
    _beside(out, out.numel())


@spoilt
def guard_before_overwritten(out: Tensor, x: Tensor) -> None:
    _beside(out, -1)


def _beside(tensor: Tensor, place: int) -> None:
    """Write to memory that is not the tensor's: a row too far."""
    tensor.as_strided((1,), (1,), tensor.storage_offset() + place).fill_(1.0)


def unwritten_tail(x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> Tensor:
    right = to_torch(reference_rms_norm(to_numpy(x), to_numpy(weight), eps))
    out[:, :-3] = right[:, :-3]
    return out


def unwritten_row(x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> Tensor:
    right = to_torch(reference_rms_norm(to_numpy(x), to_numpy(weight), eps))
    out[:-1] = right[:-1]
    return out


CALLS = {"wrong_second_call": 0}


def wrong_second_call(x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> Tensor:
    rms_norm(x, weight, eps, out=out)
    CALLS["wrong_second_call"] += 1
    if CALLS["wrong_second_call"] % 2 == 0:
        out[3, 1] += 1.0
    return out


def rounded_twice(x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> Tensor:
    """As transformers does: to the model's dtype before the weight, too."""
    values = x.float()
    normed = values * torch.rsqrt((values * values).mean(-1, keepdim=True) + eps)
    return out.copy_(normed.to(x.dtype) * weight)


def truncated(x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> Tensor:
    """Towards zero, as a shift of float32's bits to bf16's does."""
    assert x.dtype == torch.bfloat16
    wide = reference_rms_norm(to_numpy(x).astype(np.float32), to_numpy(weight).astype(np.float32), eps)
    bits = (np.ascontiguousarray(wide).view(np.uint32) >> 16).astype(np.uint16)
    return out.copy_(to_torch(bits.view(ml_dtypes.bfloat16)))


def raises(x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> Tensor:
    raise RuntimeError("the launch failed")


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> tuple[Tensor, Tensor]:
    """Nothing is wrong with this one. It overwrites the residual."""
    normed, total = reference_add_rms_norm(to_numpy(x), to_numpy(residual), to_numpy(weight), eps)
    return out.copy_(to_torch(normed)), residual.copy_(to_torch(total))


def sum_normalised_unrounded(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, out: Tensor
) -> tuple[Tensor, Tensor]:
    """Nearer to the oracle than the contract is; but the next layer sees another residual than was normalised."""
    total = x.float() + residual.float()
    normed = reference_rms_norm(total.numpy(), to_numpy(weight).astype(np.float32), eps)
    return out.copy_(torch.from_numpy(normed)), residual.copy_(to_torch(residual_add(to_numpy(x), to_numpy(residual))))


def router_top_k(logits: Tensor, k: int, *, normalize: bool, out: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Nothing is wrong with this one."""
    for place, result in zip(out, reference_router_top_k(to_numpy(logits), k, normalize=normalize), strict=True):
        place.copy_(to_torch(result))
    return out


def tie_to_the_higher_id(
    logits: Tensor, k: int, *, normalize: bool, out: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    flipped = to_numpy(logits)[:, ::-1]
    expert_ids, weights = reference_router_top_k(flipped, k, normalize=normalize)
    out[0].copy_(to_torch(logits.shape[1] - 1 - expert_ids))
    out[1].copy_(to_torch(weights))
    return out


def in_place(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Nothing is wrong with this one. It overwrites its input."""
    return rms_norm(x, weight, eps, out=x)


def gap_overwritten(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    in_place(x, weight, eps)
    _beside(x, x.shape[1])  # behind the first row, before the second
    return x


def returned_alone(x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> Tensor:
    return rms_norm(x, weight, eps, out=torch.empty_like(out))


def returned_both_alone(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, out: Tensor
) -> tuple[Tensor, Tensor]:
    return add_rms_norm(x, residual.clone(), weight, eps, out=torch.empty_like(out))


def nan_unwritten(x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> Tensor:
    right = rms_norm(x, weight, eps, out=torch.empty_like(out))
    is_number = ~right.isnan()
    out[is_number] = right[is_number]
    return out


def reference_no_row(x: Array) -> Array:  # i32 [T]
    """-1 for each row."""
    return np.full(len(x), -1, np.int32)


def no_row(x: Tensor, *, out: Tensor) -> Tensor:
    return out.fill_(-1)


def no_row_unwritten(x: Tensor, *, out: Tensor) -> Tensor:
    return out
