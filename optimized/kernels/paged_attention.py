"""Paged decode attention on a GPU, for up to eight queries a request: one launch, whatever the lengths.

Keys are cut into splits of a fixed length, and a persistent grid takes equal numbers of them: `paged_attention_split`.
What a warp does with its keys is in `paged_attention_chunk`, what a block does with its splits in
`paged_attention_run`. Sums over warps are in `paged_attention_sum`, those over splits in `paged_attention_merge`: where
the keys of a request are cut between blocks, these meet at a barrier of the grid and share the rest of the sum.

Rounding: scores are added up in float32 by the tensor core. A probability enters the product with V as the sum of two
numbers of q's dtype, its rounding and the rounding of the rest: to 16 bits of bfloat16, to 22 of float16, but of no
probability to less than 2^-40 of the largest. Everything else is float32, and there is one rounding at the end.

A row has the same bits alone and in any company: what it is computed from, and in which order, follows from its own
request's length and constants.

An infinity among a request's values may become NaN.

Programmatic dependent launch (`pdl`): the kernel begins while the launch before it still runs, and waits for that one's
end before it reads a query, or a key or value of a query's own token, and before it writes anything. What it reads
earlier must have been there when the launch before it began:
- query_start, seq_lens and block_table, which are copied from the host before a step's first launch;
- keys and values of tokens before each request's queries, of the pieces of 16 keys that hold no token of a query. A
  step in which a request reads a block that another one's queries fill must not ask for it.
That holds where each step begins with a launch, a copy or a graph that waits for all before it, and the step's own keys
are written by the launch before this one, which is itself an ordinary launch or lets this one begin after its own wait.
The launch after this one may begin once all blocks have passed the barrier of the grid. By then all are resident, so
that it takes no place that one of them needs; where no block waits, it begins as blocks end.
"""

from __future__ import annotations

from optimized.arguments import HALVES, INT32, output, require, sizes_of
from optimized.compile.residency import most_registers, require_resident
from optimized.device import Tensor, device_of, dtype_of
from optimized.kernels.paged_attention_chunk import PIECE
from optimized.kernels.paged_attention_kernel import PagedAttention
from optimized.kernels.paged_attention_launch import CHUNK, MOST_REQUESTS, attention_launch
from optimized.kernels.paged_attention_sum import CHANNELS
from optimized.kernels.rows import common_vector

HEAD_DIMS = (64, 128, 256)


def paged_attention(
    q: Tensor,  # [T, Nq, D], a token's heads contiguous
    k_cache: Tensor,  # [B, Nkv, bs, D], a block contiguous
    v_cache: Tensor,  # [B, Nkv, bs, D], likewise
    block_table: Tensor,  # i32 [R, M], rows contiguous; -1 pads
    query_start: Tensor,  # i32 [R + 1]
    seq_lens: Tensor,  # i32 [R], each at most M * bs
    *,
    max_query_len: int,  # no request has more queries; at most 8
    scale: float | None = None,  # None: D ** -0.5
    pdl: bool = False,
    out: Tensor | None = None,  # [T, Nq, D]
) -> Tensor:  # [T, Nq, D], q's dtype: `out`, or new memory
    """Attention of each request's last tokens to all its keys, as the reference says.

    bfloat16 or float16; blocks of a multiple of 16 tokens; heads of 64, 128 or 256 channels. What is in `query_start`
    (which begins with 0), `seq_lens` and `block_table` is not looked at here: a captured graph may be replayed with
    other lengths. pdl: see above.

    Errors: ValueError for more than 8 queries a request or 1,024 requests, for sizes that are not supported, and for
    heads that the KV heads do not divide; ValueError, TypeError for tensors that do not fit.
    """
    operation = "paged_attention"
    device = device_of(q)
    num_tokens, num_heads, head_dim = sizes_of(operation, "q", q, ("T", "Nq", "D"), HALVES)
    dtype = dtype_of(q)
    num_blocks, num_kv_heads, block_size, _ = sizes_of(operation, "k_cache", k_cache, ("B", "Nkv", "bs", "D"), (dtype,))
    require(operation, "k_cache", k_cache, (num_blocks, num_kv_heads, block_size, head_dim), (dtype,))
    require(operation, "v_cache", v_cache, k_cache.shape, (dtype,))
    num_requests, max_blocks = sizes_of(operation, "block_table", block_table, ("R", "M"), INT32)
    require(operation, "query_start", query_start, (num_requests + 1,), INT32)
    require(operation, "seq_lens", seq_lens, (num_requests,), INT32)
    _require_supported(num_heads, num_kv_heads, head_dim, block_size, num_requests)
    launch = attention_launch(
        device.arch,
        device.num_sms,
        num_requests=num_requests,
        max_keys=max_blocks * block_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_query_len=max_query_len,
    )
    out = output(operation, "out", out, device, (num_tokens, num_heads, head_dim), dtype)
    if num_tokens == 0:
        return out
    kernel = PagedAttention(
        num_heads,
        num_kv_heads,
        head_dim,
        block_size,
        dtype,
        head_dim**-0.5 if scale is None else float(scale),
        launch.split,
        launch.splits_per_span,
        launch.warps,
        launch.stages,
        launch.tiles,
        launch.rows,
        launch.passes,
        launch.capacity,
        launch.blocks,
        launch.slots > 0,
        launch.spares_registers,
        bool(pdl),
        min(PIECE, common_vector(device.arch, head_dim, k_cache, v_cache)),
        min(PIECE, common_vector(device.arch, head_dim, q, out)),
    )
    if launch.slots:
        require_resident(
            device.arch,
            device.num_sms,
            launch.blocks,
            threads=kernel.threads,
            registers=most_registers(device.arch, kernel.threads),
            shared_bytes=launch.shared_bytes,
        )
    kept = device.empty((max(1, launch.blocks * launch.slots), launch.rows, head_dim + CHANNELS), "float32")
    counter = device.barrier_counter()
    device.run(kernel, q, k_cache, v_cache, block_table, query_start, seq_lens, kept, counter, out)
    return out


def _require_supported(num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, num_requests: int) -> None:
    """Errors: ValueError."""
    if num_heads % num_kv_heads:
        raise ValueError(f"paged_attention: {num_kv_heads} KV heads do not divide {num_heads} query heads")
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"paged_attention: heads of 64, 128 or 256 channels are supported; these have {head_dim}")
    if block_size % CHUNK:
        raise ValueError(f"paged_attention: a block must have a multiple of {CHUNK} tokens; these have {block_size}")
    if num_requests > MOST_REQUESTS:
        raise ValueError(f"paged_attention: at most {MOST_REQUESTS} requests a call; there are {num_requests}")
