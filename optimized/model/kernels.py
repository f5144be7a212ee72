"""Which kernels a model needs, found by asking host code for every operation at every number of tokens.

Host code chooses variants by shape, and is handed outlines in place of tensors here; so this list is what serving
launches, whatever the launch policy says.

It holds for chips of as many multiprocessors as are asked for, by default as the usual board has
(`optimized.compile.arch`): where variants change depends on their number, and some kernels have it among their
constants. A chip of fewer or more, or a part of one, is served as well, but builds some kernels when it first needs
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from optimized.arguments import HALVES
from optimized.compile.arch import Arch
from optimized.compile.kernel import Kernel
from optimized.device import CompileOnly, Outline
from optimized.kernels.add_rms_norm import add_rms_norm
from optimized.kernels.embedding import embedding
from optimized.kernels.few_rows_launch import FEW_ROWS
from optimized.kernels.gated_activation import gated_activation
from optimized.kernels.grouped_linear_many_rows import grouped_linear_many_rows
from optimized.kernels.kv_block_copy import kv_block_copy
from optimized.kernels.linear_many_rows import linear_many_rows
from optimized.kernels.moe_combine import moe_combine
from optimized.kernels.moe_dispatch import moe_dispatch
from optimized.kernels.moe_dispatch_launch import dispatch_rows
from optimized.kernels.paged_attention import HEAD_DIMS, paged_attention
from optimized.kernels.paged_attention_launch import MOST_REQUESTS
from optimized.kernels.prefill_attention import HEAD_DIMS as PREFILL_HEAD_DIMS
from optimized.kernels.prefill_attention import prefill_attention
from optimized.kernels.qk_norm_rope_kv_write import qk_norm_rope_kv_write
from optimized.kernels.rms_norm import rms_norm
from optimized.kernels.router_top_k import router_top_k
from optimized.kernels.row_cluster import longest_row
from optimized.libraries import FLASH_ATTENTION, QUACK, library_versions
from optimized.model.product_kernels import launch_products
from optimized.model.sampling_kernels import launch_sampling
from reference.model.config import ModelConfig

BLOCK_SIZE = 128  # tokens of a KV block
EXPERT_TILE = 128  # rows to which an expert's are padded


def kernels_of(config: ModelConfig, arch: Arch, *, max_tokens: int, num_sms: int | None = None) -> list[Kernel]:
    """Each kernel once. max_tokens: of one step. num_sms: multiprocessors; as the arch's usual board, if None."""
    found: dict[Kernel, None] = {}
    arch = arch if num_sms is None else replace(arch, num_sms=num_sms)
    device = CompileOnly(arch, lambda kernel, _: found.setdefault(kernel))
    for num_tokens in token_counts(max_tokens):
        launch_all(config, device, num_tokens)
    return list(found)


def token_counts(most: int) -> Iterator[int]:
    """All up to 256, and then eight between each power of two and the next: launches change at few of them."""
    yield from range(1, min(most, 256) + 1)
    step, count = 32, 256
    while count < most:
        count += step
        yield min(count, most)
        if count >= 16 * step:
            step *= 2


def launch_all(config: ModelConfig, device: CompileOnly, num_tokens: int) -> None:
    """Every operation of a layer and of both ends, on outlines."""
    dtype, hidden, head_dim = config.dtype.name, config.hidden_size, config.head_dim

    def tensor(*shape: int, of: str = dtype, row_stride: int | None = None) -> Outline:
        outline = Outline(shape, of, device)
        strides = None if row_stride is None else (row_stride, *outline.stride()[1:])
        return Outline(shape, of, device, strides)

    tokens = tensor(num_tokens, of="int32")
    x, norm = tensor(num_tokens, hidden), tensor(hidden)
    embedding(tokens, tensor(config.vocab_size, hidden))
    rms_norm(x, norm, config.rms_norm_eps)
    add_rms_norm(x, x, norm, config.rms_norm_eps)

    stride = (config.num_heads + 2 * config.num_kv_heads) * head_dim  # q, k and v come out of one product
    q = tensor(num_tokens, config.num_heads, head_dim, row_stride=stride)
    k = tensor(num_tokens, config.num_kv_heads, head_dim, row_stride=stride)
    k_cache, v_cache = (tensor(1024, config.num_kv_heads, BLOCK_SIZE, head_dim) for _ in range(2))
    table = tensor(config.max_position_embeddings, head_dim // 2, of="float32")
    slots, head_norm = tensor(num_tokens, of="int64"), tensor(head_dim)
    heads = q, k, k, head_norm, head_norm
    qk_norm_rope_kv_write(*heads, tokens, table, table, k_cache, v_cache, slots, config.rms_norm_eps)
    kv_block_copy(k_cache, v_cache, tensor(num_tokens, 2, of="int32"))
    if num_tokens <= MOST_REQUESTS:  # of one token each
        launch_products(config, device, num_tokens)
    if num_tokens <= MOST_REQUESTS and dtype in HALVES and head_dim in HEAD_DIMS:
        blocks = tensor(num_tokens, -(-config.max_position_embeddings // BLOCK_SIZE), of="int32")
        starts = tensor(num_tokens + 1, of="int32")
        paged_attention(q, k_cache, v_cache, blocks, starts, tokens, max_query_len=1)

    if not all(config.sparse_layers):
        gated_activation(tensor(num_tokens, 2 * config.intermediate_size), kind=config.activation)
    if any(config.sparse_layers):
        top_k = config.num_experts_per_token
        router_top_k(tensor(num_tokens, config.num_experts), top_k, normalize=config.norm_topk_prob)
        ids, weights = tensor(num_tokens, top_k, of="int32"), tensor(num_tokens, top_k, of="float32")
        _, _, row_of, rows = moe_dispatch(x, ids, config.num_experts, tile=EXPERT_TILE)
        gated_activation(tensor(rows.shape[0], 2 * config.moe_intermediate_size), kind=config.activation)
        moe_combine(rows, row_of, weights)
    if config.vocab_size <= longest_row():
        launch_sampling(config.vocab_size, device, num_tokens)
    if num_tokens > FEW_ROWS and dtype in HALVES and all(library_versions(FLASH_ATTENTION, QUACK).values()):
        _launch_libraries(config, tensor, num_tokens)


def _launch_libraries(config: ModelConfig, tensor: Callable[..., Outline], num_tokens: int) -> None:
    """What stands on libraries' kernels: products of many rows, and attention of prompts. tensor: as for `Outline`."""
    hidden, head_dim, num_heads = config.hidden_size, config.head_dim, config.num_heads
    x, features = tensor(num_tokens, hidden), (num_heads + 2 * config.num_kv_heads) * head_dim
    gated = "silu" if config.activation == "silu" else None

    linear_many_rows(x, tensor(features, hidden))
    linear_many_rows(tensor(num_tokens, num_heads * head_dim), tensor(hidden, num_heads * head_dim), None, x)
    if head_dim in PREFILL_HEAD_DIMS:
        q = tensor(num_tokens, num_heads, head_dim, row_stride=features)
        cache = tensor(1024, config.num_kv_heads, BLOCK_SIZE, head_dim)
        blocks, starts, lens = (tensor(*shape, of="int32") for shape in ((1, 8), (2,), (1,)))
        prefill_attention(q, cache, cache, blocks, starts, lens)
    if not all(config.sparse_layers):
        inner = config.intermediate_size
        linear_many_rows(x, tensor(2 * inner, hidden), activation=gated)
        linear_many_rows(tensor(num_tokens, inner), tensor(hidden, inner), None, x)
    if any(config.sparse_layers):
        experts, inner = config.num_experts, config.moe_intermediate_size
        num_rows = dispatch_rows(num_tokens, config.num_experts_per_token, experts, tile=EXPERT_TILE)
        offsets = tensor(experts + 1, of="int32")
        grouped_linear_many_rows(
            tensor(num_rows, hidden), tensor(experts, 2 * inner, hidden), offsets, activation=gated
        )
        grouped_linear_many_rows(tensor(num_rows, inner), tensor(experts, hidden, inner), offsets)
