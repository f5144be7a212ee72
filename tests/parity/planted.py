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


def memory_for(x: Tensor, out: Tensor | None) -> Tensor:
    """What is given, or memory like x from the device."""
    return x.panel_device.empty(x.shape, str(x.dtype).removeprefix("torch.")) if out is None else out


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """Nothing is wrong with this one."""
    return memory_for(x, out).copy_(to_torch(reference_rms_norm(to_numpy(x), to_numpy(weight), eps)))


def spoilt(fault: Callable[[Tensor, Tensor], None]) -> Callable[..., Tensor]:
    """rms_norm, and then the fault, which is given what was computed and the input."""

    def function(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
        out = rms_norm(x, weight, eps, out=out)
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


def unwritten_tail(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    out = memory_for(x, out)
    right = to_torch(reference_rms_norm(to_numpy(x), to_numpy(weight), eps))
    out[:, :-3] = right[:, :-3]
    return out


def unwritten_row(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    out = memory_for(x, out)
    right = to_torch(reference_rms_norm(to_numpy(x), to_numpy(weight), eps))
    out[:-1] = right[:-1]
    return out


CALLS = {"wrong_second_call": 0}


def wrong_second_call(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    out = memory_for(x, out)
    rms_norm(x, weight, eps, out=out)
    CALLS["wrong_second_call"] += 1
    if CALLS["wrong_second_call"] % 2 == 0:
        out[3, 1] += 1.0
    return out


KEPT: list[Tensor] = []


def result_kept(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """The first call's, for every call of such a shape."""
    KEPT.append(rms_norm(x, weight, eps, out=out).clone())
    return memory_for(x, out).copy_(KEPT[0])


def address_remembered(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """What was read at an address is taken for what is there."""
    if not KEPT or KEPT[0].data_ptr() != x.data_ptr():
        KEPT[:] = [x, rms_norm(x, weight, eps, out=out).clone()]
    return memory_for(x, out).copy_(KEPT[1])


def scratch_not_cleared(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """As if what the device gives were zeros."""
    counts = x.panel_device.empty((len(x),), "int32")
    counts += 1
    return memory_for(x, out).copy_(rms_norm(x, weight, eps) * counts[:, None])


def scratch_overrun(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    _beside(x.panel_device.empty((len(x),), "float32"), len(x))
    return rms_norm(x, weight, eps, out=out)


def own_memory_unwritten(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    return memory_for(x, out) if out is None else rms_norm(x, weight, eps, out=out)


def own_memory_of_another_dtype(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    own = x.panel_device.empty(x.shape, "float32") if out is None else out
    return rms_norm(x, weight, eps, out=own)


def own_memory_of_another_shape(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    return (
        x.panel_device.empty((len(x) + 1, x.shape[1]), "bfloat16") if out is None else rms_norm(x, weight, eps, out=out)
    )


def memory_of_nobody_returned(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    return rms_norm(x, weight, eps, out=torch.empty_like(x) if out is None else out)


def aligned_only(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """Reads 16 bytes at once, wherever they begin."""
    assert all(one.data_ptr() % 16 == 0 for one in (x, weight, memory_for(x, out)))
    return rms_norm(x, weight, eps, out=out)


def stride_of_out_ignored(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    own = memory_for(x, out)
    rms_norm(x, weight, eps, out=own.as_strided(own.shape, (own.shape[1], 1), own.storage_offset()))
    return own


def rounded_twice(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """As transformers does: to the model's dtype before the weight, too."""
    out = memory_for(x, out)
    values = x.float()
    normed = values * torch.rsqrt((values * values).mean(-1, keepdim=True) + eps)
    return out.copy_(normed.to(x.dtype) * weight)


def truncated(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """Towards zero, as a shift of float32's bits to bf16's does."""
    out = memory_for(x, out)
    assert x.dtype == torch.bfloat16
    wide = reference_rms_norm(to_numpy(x).astype(np.float32), to_numpy(weight).astype(np.float32), eps)
    bits = (np.ascontiguousarray(wide).view(np.uint32) >> 16).astype(np.uint16)
    return out.copy_(to_torch(bits.view(ml_dtypes.bfloat16)))


def _in_a_part(place: Any, fault: Callable[..., Any]) -> Callable[..., Any]:
    """What is right, but in a part of the first output, where it is what the fault gives."""

    def function(*inputs: Tensor, eps: float, out: Tensor | None = None) -> Any:
        right: Callable[..., Any] = rms_norm if len(inputs) == 2 else add_rms_norm
        out = memory_for(inputs[0], out)
        wrong = torch.empty_like(out)
        fault(*(one.clone() for one in inputs), eps, out=wrong)
        result = right(*inputs, eps, out=out)
        out[place] = wrong[place]
        return result

    return function


LAST_ROW, LAST_LANES, LANE_OF_16 = np.s_[-1:], np.s_[:, -8:], np.s_[:, 5::16]
rounded_twice_in_the_last_row = _in_a_part(LAST_ROW, rounded_twice)
rounded_twice_in_the_last_lanes = _in_a_part(LAST_LANES, rounded_twice)
rounded_twice_in_a_lane_of_16 = _in_a_part(LANE_OF_16, rounded_twice)
truncated_in_the_last_row = _in_a_part(LAST_ROW, truncated)
truncated_in_the_last_lanes = _in_a_part(LAST_LANES, truncated)
truncated_in_a_lane_of_16 = _in_a_part(LANE_OF_16, truncated)


def raises(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    raise RuntimeError("the launch failed")


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Nothing is wrong with this one. It overwrites the residual."""
    out = memory_for(x, out)
    normed, total = reference_add_rms_norm(to_numpy(x), to_numpy(residual), to_numpy(weight), eps)
    return out.copy_(to_torch(normed)), residual.copy_(to_torch(total))


def residual_truncated(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The sum is rounded towards zero where it is not exact, which errs by less than an ULP."""
    out = memory_for(x, out)
    exactly = x.double() + residual.double()
    normed, total = add_rms_norm(x, residual, weight, eps, out=out)
    is_larger = total.double().abs() > exactly.abs()
    total[is_larger] = torch.nextafter(total, torch.zeros_like(total))[is_larger]
    return normed, total


def sum_normalised_unrounded(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Nearer to the oracle than the contract is; but the next layer sees another residual than was normalised."""
    out = memory_for(x, out)
    total = x.float() + residual.float()
    normed = reference_rms_norm(total.numpy(), to_numpy(weight).astype(np.float32), eps)
    return out.copy_(torch.from_numpy(normed)), residual.copy_(to_torch(residual_add(to_numpy(x), to_numpy(residual))))


sum_normalised_unrounded_in_the_last_row = _in_a_part(LAST_ROW, sum_normalised_unrounded)
sum_normalised_unrounded_in_the_last_lanes = _in_a_part(LAST_LANES, sum_normalised_unrounded)
sum_normalised_unrounded_in_a_lane_of_16 = _in_a_part(LANE_OF_16, sum_normalised_unrounded)


def memory_for_top(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    shape, device = (len(logits), k), logits.panel_device
    return device.empty(shape, "int32"), device.empty(shape, "float32")


def router_top_k(
    logits: Tensor, k: int, *, normalize: bool, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Nothing is wrong with this one."""
    out = out or memory_for_top(logits, k)
    for place, result in zip(out, reference_router_top_k(to_numpy(logits), k, normalize=normalize), strict=True):
        place.copy_(to_torch(result))
    return out


def tie_to_the_higher_id(
    logits: Tensor, k: int, *, normalize: bool, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    out = out or memory_for_top(logits, k)
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


def returned_alone(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    return rms_norm(x, weight, eps)


def returned_both_alone(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Where it is asked for: where it is not, nothing is wrong."""
    return add_rms_norm(x, residual if out is None else residual.clone(), weight, eps)


def residual_returned_alone(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    normed, total = add_rms_norm(x, residual, weight, eps, out=out)
    return normed, total.clone()


def nan_unwritten(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    out = memory_for(x, out)
    right = rms_norm(x, weight, eps, out=torch.empty_like(out))
    is_number = ~right.isnan()
    out[is_number] = right[is_number]
    return out


def reference_no_row(x: Array) -> Array:  # i32 [T]
    """-1 for each row."""
    return np.full(len(x), -1, np.int32)


def no_row(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    out = x.panel_device.empty((len(x),), "int32") if out is None else out
    return out.fill_(-1)


def no_row_unwritten(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    out = x.panel_device.empty((len(x),), "int32") if out is None else out
    return out


def nothing_returned(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    return None


def nothing_launched(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.panel_device.empty(x.shape, x.dtype), residual


def another_dtype_returned(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.panel_device.empty((0, x.shape[1]), "float32"), residual


def another_shape_returned(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.panel_device.empty((0, x.shape[1]), x.dtype), residual


def another_residual_returned(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    nothing = x.panel_device.empty((0, x.shape[1]), x.dtype)
    return nothing, x.panel_device.empty(x.shape, x.dtype)
