"""QK-norm on a GPU: all heads of q and k in one launch, each in the registers of a half-warp or less, in place.

Rounding: that of the reference, one at the end. The mean of squares is added up in another order, in float32, and
1 / sqrt is the chip's, right to two units in the last place of float32.
Source: Perplexity's description of its QK-norm kernel: part of a warp a head, both tensors in one launch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cutlass import cute

from optimized.arguments import FLOATS, require, require_apart, require_two, sizes_of
from optimized.compile.kernel import Kernel
from optimized.compile.launch_policy import WARP
from optimized.device import Tensor, device_of, dtype_of
from optimized.kernels.heads import (
    HeadLaunch,
    head_launch,
    heads_of,
    load_head,
    load_heads,
    norm_heads,
    place,
    require_even,
    store_heads,
)
from optimized.kernels.rows import Vectorized, common_vector, itemsize, vector_of


@dataclass(frozen=True)
class QkNorm(HeadLaunch, Vectorized, Kernel):
    """A group of lanes takes one part of a token: heads of q, or heads of k."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    weight_dtype: str
    eps: float
    weight_bias: float

    @property
    def q_parts(self) -> int:
        return self.parts(self.num_heads)

    @property
    def token_parts(self) -> int:
        return self.q_parts + self.parts(self.num_kv_heads)

    def arguments(self) -> tuple[Any, ...]:
        num_tokens = cute.sym_int()
        q, k = (
            heads_of(self.dtype, num_tokens, count, self.head_dim, self.vector)
            for count in (self.num_heads, self.num_kv_heads)
        )
        q_weight, k_weight = (vector_of(self.weight_dtype, self.head_dim, self.vector) for _ in range(2))
        return q, k, q_weight, k_weight

    @cute.jit
    def __call__(
        self,
        mQ: cute.Tensor,  # [T, Nq, D]
        mK: cute.Tensor,  # [T, Nkv, D]
        mQWeight: cute.Tensor,  # [D]
        mKWeight: cute.Tensor,  # [D]
        stream: Any,
    ) -> None:
        threads = self.warps * WARP
        groups = mQ.shape[0] * self.token_parts
        self.kernel(mQ, mK, mQWeight, mKWeight).launch(
            grid=[cute.ceil_div(groups, threads // self.lanes), 1, 1], block=[threads, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(self, mQ: cute.Tensor, mK: cute.Tensor, mQWeight: cute.Tensor, mKWeight: cute.Tensor) -> None:
        token, part, lane = place(self.warps, self.lanes, self.token_parts)
        is_token = token < mQ.shape[0]
        is_q = part < self.q_parts
        first_q, first_k = part * self.heads, (part - self.q_parts) * self.heads

        rX = cute.make_rmem_tensor((self.vector, self.vectors, self.heads), mQ.element_type)
        rWeight = cute.make_rmem_tensor((self.vector, self.vectors), mQWeight.element_type)
        rX.fill(0)
        rWeight.fill(0)
        if is_token:
            if is_q:
                load_heads(mQ[token, None, None], rX, first_q, lane, self.lanes)
                load_head(mQWeight, rWeight, lane, self.lanes)
            else:
                load_heads(mK[token, None, None], rX, first_k, lane, self.lanes)
                load_head(mKWeight, rWeight, lane, self.lanes)
        norm_heads(rX, rWeight, rX, self.lanes, self.eps, self.weight_bias)
        if is_token:
            if is_q:
                store_heads(rX, mQ[token, None, None], first_q, lane, self.lanes)
            else:
                store_heads(rX, mK[token, None, None], first_k, lane, self.lanes)


def qk_norm(
    q: Tensor,  # [T, Nq, D], a token's heads contiguous; overwritten
    k: Tensor,  # [T, Nkv, D], likewise
    q_weight: Tensor,  # [D]
    k_weight: Tensor,  # [D]
    eps: float,
    *,
    weight_bias: float = 0.0,
) -> tuple[Tensor, Tensor]:  # q and k
    """Normalise every head of q and of k by itself, in place.

    Errors: ValueError for an odd D; ValueError, TypeError for tensors that do not fit.
    """
    device = device_of(q)
    num_tokens, num_heads, head_dim = sizes_of("qk_norm", "q", q, ("T", "Nq", "D"))
    dtype, weight_dtype = dtype_of(q), dtype_of(q_weight)
    _, num_kv_heads, _ = sizes_of("qk_norm", "k", k, ("T", "Nkv", "D"), (dtype,))
    require("qk_norm", "k", k, (num_tokens, num_kv_heads, head_dim), (dtype,))
    require("qk_norm", "q_weight", q_weight, (head_dim,), FLOATS)
    require("qk_norm", "k_weight", k_weight, (head_dim,), (weight_dtype,))
    require_even("qk_norm", head_dim)
    require_apart("qk_norm", "q", q, num_heads * head_dim)
    require_apart("qk_norm", "k", k, num_kv_heads * head_dim)
    require_two("qk_norm", "q", q, "k", k)
    if num_tokens == 0:
        return q, k
    vector = common_vector(device.arch, head_dim // 2, q, k, beside=(q_weight, k_weight))
    launch = head_launch(
        device.num_sms,
        num_tokens,
        (num_heads, num_kv_heads),
        head_dim=head_dim,
        itemsize=itemsize(dtype),
        vector=vector,
    )
    kernel = QkNorm(
        num_heads,
        num_kv_heads,
        head_dim,
        dtype,
        weight_dtype,
        float(eps),
        float(weight_bias),
        **asdict(launch),
    )
    device.run(kernel, q, k, q_weight, k_weight)
    return q, k
