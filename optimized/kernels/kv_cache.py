"""What kernels over both caches share: their fake tensors, and what is demanded of them."""

from __future__ import annotations

from typing import Any

from cutlass import cute
from cutlass.cute.runtime import make_fake_tensor

from optimized.arguments import FLOATS, require, require_apart, require_two, sizes_of
from optimized.device import Tensor, dtype_of
from optimized.kernels.rows import DTYPES, itemsize


def caches_of(dtype: str, num_kv_heads: int, block_size: int, head_dim: int, vector: int) -> tuple[Any, Any]:
    """Fake tensors [B, num_kv_heads, block_size, head_dim] of K and of V: blocks are contiguous, each begins at a
    multiple of an access, and they may lie apart."""
    num_blocks = cute.sym_int()

    def cache() -> Any:
        return make_fake_tensor(
            DTYPES[dtype],
            (num_blocks, num_kv_heads, block_size, head_dim),
            (cute.sym_int64(divisibility=vector), block_size * head_dim, head_dim, 1),
            assumed_align=vector * itemsize(dtype),
        )

    return cache(), cache()


def cache_sizes(
    operation: str, k_cache: Tensor, v_cache: Tensor, dtypes: tuple[str, ...] = FLOATS
) -> tuple[int, ...]:  # (B, Nkv, bs, D)
    """Of both caches, which are written to. Errors: ValueError, TypeError."""
    sizes = sizes_of(operation, "k_cache", k_cache, ("B", "Nkv", "bs", "D"), dtypes)
    require(operation, "v_cache", v_cache, sizes, (dtype_of(k_cache),))
    _, num_kv_heads, block_size, head_dim = sizes
    require_apart(operation, "k_cache", k_cache, num_kv_heads * block_size * head_dim)
    require_apart(operation, "v_cache", v_cache, num_kv_heads * block_size * head_dim)
    require_two(operation, "k_cache", k_cache, "v_cache", v_cache)
    return sizes
