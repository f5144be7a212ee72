"""The gated activation of an MLP on a GPU: gate and up in one tensor, as one matrix product leaves them.

Rounding: that of the reference, one at the end. In float32 every step is the reference's own, so that only exp is not
the same to the bit: products that an addition follows are kept from becoming one fused operation. For outputs of 16
bits exp and the reciprocal are the chip's approximations, which err by a few ULPs of float32: no output shows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import const_expr, cute, range_constexpr

from optimized.arguments import output, sizes_of
from optimized.compile.kernel import Kernel
from optimized.device import Tensor, device_of, dtype_of
from optimized.kernels.items import ItemLaunch, access, item, item_launch, num_blocks
from optimized.kernels.precise import exp_of_negative, product
from optimized.kernels.rows import Vectorized, common_vector, rows_of

KINDS = ("silu", "gelu", "gelu_pytorch_tanh")


@dataclass(frozen=True)
class GatedActivation(Vectorized, Kernel):
    """out = act(gate) * up."""

    intermediate_size: int
    dtype: str
    kind: str
    vector: int
    threads: int
    items: int

    def arguments(self) -> tuple[Any, ...]:
        num_rows = cute.sym_int()
        lengths = (2 * self.intermediate_size, self.intermediate_size)
        return tuple(rows_of(self.dtype, num_rows, length, self.vector) for length in lengths)

    @cute.jit
    def __call__(
        self,
        mGateUp: cute.Tensor,  # [T, 2 I]
        mOut: cute.Tensor,  # [T, I]
        stream: Any,
    ) -> None:
        launch = ItemLaunch(self.threads, self.items)
        self.kernel(mGateUp, mOut).launch(
            grid=[num_blocks(mOut.shape[0], self.intermediate_size // self.vector, launch), 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(self, mGateUp: cute.Tensor, mOut: cute.Tensor) -> None:
        launch = ItemLaunch(self.threads, self.items)
        row_items = self.intermediate_size // self.vector
        num_rows = mOut.shape[0]
        rGate, rUp = (
            cute.make_rmem_tensor((self.vector, self.items), mOut.element_type),
            cute.make_rmem_tensor((self.vector, self.items), mOut.element_type),
        )
        for i in range_constexpr(self.items):
            row, number = item(i, row_items, launch)
            if row < num_rows:
                cute.autovec_copy(access(mGateUp[row, None], self.vector, number), rGate[None, i])
                cute.autovec_copy(access(mGateUp[row, None], self.vector, number + row_items), rUp[None, i])
        for i in range_constexpr(self.items):
            row, number = item(i, row_items, launch)
            if row < num_rows:
                for element in range_constexpr(self.vector):
                    gate, up = rGate[element, i].to(cutlass.Float32), rUp[element, i].to(cutlass.Float32)
                    rGate[element, i] = (self.activation(gate) * up).to(mOut.element_type)
                cute.autovec_copy(rGate[None, i], access(mOut[row, None], self.vector, number))

    @cute.jit
    def activation(self, x: cutlass.Float32) -> cutlass.Float32:
        """In the forms of the reference, which cancel nowhere."""
        if const_expr(self.kind == "silu"):
            result = x * self.sigmoid(x)
        elif const_expr(self.kind == "gelu"):
            result = x * (self.erfc(x * -math.sqrt(0.5)) * 0.5)
        else:
            # NaN stays NaN: a comparison with it is false.
            bounded = cutlass.Float32(1e4) if x > 1e4 else (cutlass.Float32(-1e4) if x < -1e4 else x)
            cube = product(product(product(bounded, 0.044715), bounded), bounded)
            result = x * self.sigmoid(2.0 * product(bounded + cube, math.sqrt(2.0 / math.pi)))
        return result

    @cute.jit
    def sigmoid(self, x: cutlass.Float32) -> cutlass.Float32:
        magnitude = cute.math.abs(x)
        if const_expr(self.dtype == "float32"):
            decay = exp_of_negative(-magnitude)
            result = (cutlass.Float32(1.0) if x >= 0.0 else decay) / (1.0 + decay)
        else:
            decay = cute.math.exp2(magnitude * -math.log2(math.e), approx=True)
            result = (cutlass.Float32(1.0) if x >= 0.0 else decay) * cute.math.rcp(1.0 + decay, approx=True, ftz=True)
        return result

    @cute.jit
    def erfc(self, x: cutlass.Float32) -> cutlass.Float32:
        """The compiler's erfc errs by up to 4 ULPs in float32; SciPy's, which the reference calls, is a double's
        rounded, and so is this one where it shows."""
        if const_expr(self.dtype == "float32"):
            result = cute.math.erfc(x.to(cutlass.Float64)).to(cutlass.Float32)
        else:
            result = cute.math.erfc(x)
        return result


def gated_activation(
    gate_up: Tensor,  # [T, 2 I], rows contiguous: gate, then up
    *,
    kind: str,  # one of KINDS
    out: Tensor | None = None,  # [T, I]
) -> Tensor:  # [T, I], gate_up's dtype: `out`, or new memory
    """act(gate) * up, element by element.

    Errors: ValueError for an activation that is not known, or an odd number of channels; ValueError, TypeError for
    tensors that do not fit.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown activation {kind!r}; known are {', '.join(KINDS)}")
    device = device_of(gate_up)
    num_rows, channels = sizes_of("gated_activation", "gate_up", gate_up, ("T", "2 I"))
    if channels % 2:
        raise ValueError(
            f"gated_activation: gate_up has {channels} channels; gate and up must have as many as each other"
        )
    intermediate_size = channels // 2
    dtype = dtype_of(gate_up)
    out = output("gated_activation", "out", out, device, (num_rows, intermediate_size), dtype)
    if num_rows == 0:
        return out
    vector = common_vector(device.arch, intermediate_size, gate_up, out)
    launch = item_launch(device.num_sms, num_rows * (intermediate_size // vector), items=2)
    kernel = GatedActivation(intermediate_size, dtype, kind, vector, launch.threads, launch.items)
    device.run(kernel, gate_up, out)
    return out
