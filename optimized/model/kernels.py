"""Which kernels a model needs, found by asking host code for every operation at every number of tokens.

Host code chooses variants by shape, and is handed outlines in place of tensors here; so this list is what serving
launches, whatever the launch policy says.

It holds for chips of as many multiprocessors as are asked for, by default as the usual board has
(`optimized.compile.arch`): where variants change depends on their number, and some kernels have it among their
constants. A chip of fewer or more, or a part of one, is served as well, but builds some kernels when it first needs
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from optimized.compile.arch import Arch
from optimized.compile.kernel import Kernel
from optimized.device import CompileOnly, Outline
from optimized.kernels.add_rms_norm import add_rms_norm
from optimized.kernels.embedding import embedding
from optimized.kernels.gated_activation import gated_activation
from optimized.kernels.kv_block_copy import kv_block_copy
from optimized.kernels.moe_combine import moe_combine
from optimized.kernels.moe_dispatch import moe_dispatch
from optimized.kernels.qk_norm_rope_kv_write import qk_norm_rope_kv_write
from optimized.kernels.rms_norm import rms_norm
from optimized.kernels.router_top_k import router_top_k
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

    if not all(config.sparse_layers):
        gated_activation(tensor(num_tokens, 2 * config.intermediate_size), kind=config.activation)
    if any(config.sparse_layers):
        top_k = config.num_experts_per_token
        router_top_k(tensor(num_tokens, config.num_experts), top_k, normalize=config.norm_topk_prob)
        ids, weights = tensor(num_tokens, top_k, of="int32"), tensor(num_tokens, top_k, of="float32")
        _, _, row_of, rows = moe_dispatch(x, ids, config.num_experts, tile=EXPERT_TILE)
        gated_activation(tensor(rows.shape[0], 2 * config.moe_intermediate_size), kind=config.activation)
        moe_combine(rows, row_of, weights)
