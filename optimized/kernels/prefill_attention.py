"""Causal attention of many queries a request over a paged KV cache on a GPU: whole prompts and chunks of them, by
flash-attn-4.

Rounding: scores and softmax are float32; probabilities are rounded to the dtype before they multiply v, which the
reference does not do, each relative to the largest score seen so far; their sum, by which the result is divided, is
that of the unrounded ones; one more rounding at the end. In float16 a probability below 2^-14 of the largest so far is
rounded to a multiple of 2^-24. A tile of keys begins at a multiple of its size from a request's first key, and tiles
are not split among blocks of threads: a query's bits depend neither on other requests, nor on where its chunk began,
nor on the choice.
"""

from __future__ import annotations

from optimized.arguments import HALVES, INT32, output, require, require_at_least_one, sizes_of
from optimized.compile.arch import Arch
from optimized.device import Tensor, device_of, dtype_of
from optimized.kernels.clear_rows import clear_rows
from optimized.kernels.linear_many_rows import require_aligned
from optimized.kernels.linear_many_rows_gemm import generation_of
from optimized.kernels.prefill_attention_kernel import PrefillAttention
from optimized.tuned import run_choice, tuned_for

HEAD_DIMS = (64, 128, 256)
CHOICES = ("flash packed", "flash by head")  # the heads of a group share a tile of queries, or have one each


def prefill_attention(
    q: Tensor,  # [T, Nq, D], the queries of R requests, one after another; tokens may lie apart
    k_cache: Tensor,  # [B, Nkv, bs, D], blocks may lie apart
    v_cache: Tensor,  # [B, Nkv, bs, D]
    block_table: Tensor,  # i32 [R, M]: the blocks that hold a request's keys, in order; -1 pads
    query_start: Tensor,  # i32 [R + 1]: request r has the queries query_start[r] .. query_start[r + 1] - 1
    seq_lens: Tensor,  # i32 [R]: keys of each request, those of its queries included
    *,
    scale: float | None = None,  # None: 1 / sqrt(D)
    clear: bool = True,
    choice: str | None = None,  # one of CHOICES; None: the fastest that was measured
    out: Tensor | None = None,  # [T, Nq, D]
) -> Tensor:  # out, or new memory; q's dtype
    """Query j of a request's n stands at position seq_lens[r] - n + j, and sees the keys 0 .. there.

    What is not a request's may hold NaN, but not the slots behind its last key in its own last block.
    clear: rows of q beyond query_start[R] give 0; else out is left as it is there.
    Errors: ValueError for a head_dim that there is no kernel for; ValueError, TypeError for tensors that do not fit.
    """
    name = "prefill_attention"
    device = device_of(q)
    num_tokens, num_heads, head_dim = sizes_of(name, "q", q, ("T", "Nq", "D"), HALVES)
    dtype = dtype_of(q)
    num_blocks, num_kv_heads, block_size, _ = sizes_of(name, "k_cache", k_cache, ("B", "Nkv", "bs", "D"), (dtype,))
    for each, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        require(name, each, cache, (num_blocks, num_kv_heads, block_size, head_dim), (dtype,))
    num_requests, most_blocks = sizes_of(name, "block_table", block_table, ("R", "M"), INT32)
    require(name, "query_start", query_start, (num_requests + 1,), INT32)
    require(name, "seq_lens", seq_lens, (num_requests,), INT32)
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"{name}: head_dim is {head_dim}; it must be one of {', '.join(map(str, HEAD_DIMS))}")
    if num_heads % num_kv_heads:
        raise ValueError(f"{name}: {num_heads} heads of q cannot be shared among {num_kv_heads} of k evenly")
    out = output(name, "out", out, device, (num_tokens, num_heads, head_dim), dtype)
    if num_tokens == 0:
        return out
    if num_requests > 0:
        require_at_least_one(name, "blocks of a request", most_blocks)
        require_aligned(name, [q, k_cache, v_cache, out])
        if choice is None:
            sizes = num_heads, num_kv_heads, head_dim, block_size
            ranked = tuned_for(device, q).ranked(name, sizes, dtype, num_tokens)
            choice = ranked[0] if ranked else CHOICES[0]
        group = num_heads // num_kv_heads
        scale = head_dim**-0.5 if scale is None else float(scale)
        kernel = attention_kernel(device.arch, dtype, head_dim, group, block_size, scale, choice)
        tensors = q, k_cache, v_cache, block_table, query_start, seq_lens, out
        run_choice(device, name, choice, lambda: CHOICES[choice == CHOICES[0]], kernel, *tensors)
    if clear:
        clear_rows(device, query_start, out)
    return out


def attention_kernel(
    arch: Arch, dtype: str, head_dim: int, group: int, block_size: int, scale: float, choice: str
) -> PrefillAttention:
    """By a choice's name. Errors: ValueError for another name."""
    if choice not in CHOICES:
        raise ValueError(f"unknown choice {choice!r}; known are {', '.join(map(repr, CHOICES))}")
    generation = generation_of(arch)
    tile_m, tile_n = _tiles(generation, head_dim, block_size)
    # Heads that do not fill a tile of queries would leave a part of it in shared memory that nobody has written.
    packs_heads = choice == CHOICES[0] and group > 1 and tile_m % group == 0
    return PrefillAttention(
        generation, dtype, head_dim, group, scale, tile_m, tile_n, packs_heads, reads_blocks=tile_n == block_size
    )


def _tiles(generation: int, head_dim: int, block_size: int) -> tuple[int, int]:
    """Queries and keys of a tile: the library's own choice. Of keys with 256 channels fewer fit Hopper's shared memory;
    where that number is the block's size, blocks are read whole."""
    if generation != 9:
        return 128, 128
    if head_dim == 256:
        return 128, 64 if block_size == 64 else 80
    return (192, 128) if head_dim == 64 else (128, 128)
