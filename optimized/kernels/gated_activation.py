"""The gated activation of an MLP on a GPU: gate and up in one tensor, as one matrix product leaves them.

Rounding: that of the reference, one at the end. See `activation` for what is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute, range_constexpr

from optimized.arguments import output, sizes_of
from optimized.compile.kernel import Kernel
from optimized.device import Tensor, device_of, dtype_of
from optimized.kernels.activation import activated, half_of, require_activation
from optimized.kernels.items import ItemLaunch, access, item, item_launch, num_blocks
from optimized.kernels.rows import Vectorized, common_vector, rows_of


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
                    rGate[element, i] = (activated(gate, self.kind, self.dtype) * up).to(mOut.element_type)
                cute.autovec_copy(rGate[None, i], access(mOut[row, None], self.vector, number))


def gated_activation(
    gate_up: Tensor,  # [T, 2 I], rows contiguous: gate, then up
    *,
    kind: str,  # one of reference.model.config.ACTIVATIONS
    out: Tensor | None = None,  # [T, I]
) -> Tensor:  # [T, I], gate_up's dtype: `out`, or new memory
    """act(gate) * up, element by element.

    Errors: ValueError for an activation that is not known, or an odd number of channels; ValueError, TypeError for
    tensors that do not fit.
    """
    require_activation("gated_activation", kind)
    device = device_of(gate_up)
    num_rows, channels = sizes_of("gated_activation", "gate_up", gate_up, ("T", "2 I"))
    intermediate_size = half_of("gated_activation", "gate_up", channels, "channels")
    dtype = dtype_of(gate_up)
    out = output("gated_activation", "out", out, device, (num_rows, intermediate_size), dtype)
    if num_rows == 0:
        return out
    vector = common_vector(device.arch, intermediate_size, gate_up, out)
    launch = item_launch(device.num_sms, num_rows * (intermediate_size // vector), items=2)
    kernel = GatedActivation(intermediate_size, dtype, kind, vector, launch.threads, launch.items)
    device.run(kernel, gate_up, out)
    return out
