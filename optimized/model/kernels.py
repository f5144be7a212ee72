"""Which kernels a model needs, found by running it on outlines: steps of every size, chip and memory left out.

Host code chooses variants by shape, and is handed outlines in place of tensors here; so this list is what the runner
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
from optimized.kernels.known_tokens import known_tokens
from optimized.kernels.linear_many_rows_gemm import ManyRowsGemm
from optimized.kernels.paged_attention_launch import FEW_REQUESTS, MOST_QUERIES
from optimized.kernels.prefill_attention_kernel import PrefillAttention
from optimized.libraries import FLASH_ATTENTION, QUACK, library_versions
from optimized.model.decode_graphs import MOST_ROWS, buckets
from optimized.model.forward import Model
from optimized.model.layer import Positions, RowGroup
from optimized.model.runner import BLOCK_SIZE, LOGIT_ROWS
from optimized.model.sampling_kernels import launch_sampling
from optimized.model.weights import allocated
from reference.model.config import ModelConfig
from reference.serving.runner import MAX_ROWS

NUM_BLOCKS = 1024  # of KV memory: of no consequence


def kernels_of(config: ModelConfig, arch: Arch, *, max_tokens: int, num_sms: int | None = None) -> list[Kernel]:
    """Each kernel once. max_tokens: of one step. num_sms: multiprocessors; as the arch's usual board, if None. Where
    libraries are not installed, without what stands on them. Errors: UnsupportedModel."""
    found: dict[Kernel, None] = {}
    arch = arch if num_sms is None else replace(arch, num_sms=num_sms)
    device = CompileOnly(arch, lambda kernel, _: found.setdefault(kernel))
    model = outlined(config, device)
    known_tokens(_integers(device, 1), _integers(device, 1), missing=0)
    for num_rows in buckets(min(max_tokens, MOST_ROWS)):
        launch_step(model, num_rows, 1, num_rows, all_sample=True)
    for num_tokens in token_counts(max_tokens):
        launch_step(model, num_tokens, num_tokens, 1)
        launch_step(model, num_tokens, 1, min(num_tokens, MAX_ROWS))
    for queries in range(2, MOST_QUERIES + 1):
        for num_rows in (1, FEW_REQUESTS, MAX_ROWS):
            launch_step(model, min(queries * num_rows, max_tokens), queries, num_rows)
    for num_rows in token_counts(min(max_tokens, MAX_ROWS)):
        launch_sampling(config.vocab_size, device, num_rows)
    libraries_are_there = all(library_versions(FLASH_ATTENTION, QUACK).values())
    return [one for one in found if libraries_are_there or not isinstance(one, (ManyRowsGemm, PrefillAttention))]


def token_counts(most: int) -> Iterator[int]:
    """All up to 256, and then eight between each power of two and the next: launches change at few of them."""
    yield from range(1, min(most, 256) + 1)
    step, count = 32, 256
    while count < most:
        count += step
        yield min(count, most)
        if count >= 16 * step:
            step *= 2


def launch_step(model: Model, num_tokens: int, max_query_len: int, num_rows: int, *, all_sample: bool = False) -> None:
    """A step of outlines, of which so many rows attend together. all_sample: each token is one row's, whose logits are
    asked for."""
    device, config = model.device, model.config
    assert isinstance(device, CompileOnly)
    tables = (Outline((config.max_position_embeddings, config.head_dim // 2), "float32", device) for _ in range(2))
    positions = Positions(_integers(device, num_tokens), _integers(device, num_tokens), *tables)
    blocks = _integers(device, num_rows, -(-config.max_position_embeddings // BLOCK_SIZE))
    of_rows = _integers(device, num_rows + 1), _integers(device, num_rows), blocks
    group = RowGroup(0, min(num_tokens, num_rows * max_query_len), max_query_len, *of_rows)
    stream = model.hidden(_integers(device, num_tokens), positions, (group,))
    model.logits(stream, None if all_sample else _integers(device, min(num_rows, num_tokens)))
    model.logits(stream, _integers(device, min(LOGIT_ROWS, num_tokens)))


def _integers(device: CompileOnly, *shape: int) -> Outline:
    return Outline(shape, "int32", device)


def outlined(config: ModelConfig, device: CompileOnly) -> Model:
    """One layer of each kind."""
    kinds = tuple(dict.fromkeys(config.sparse_layers))
    config = replace(config, num_layers=len(kinds), sparse_layers=kinds)
    weights = allocated(config, device.empty)
    shape = (NUM_BLOCKS, config.num_kv_heads, BLOCK_SIZE, config.head_dim)
    kv = [(device.empty(shape, config.dtype.name), device.empty(shape, config.dtype.name)) for _ in kinds]
    return Model(device, config, weights, kv)
