"""The optimized panel for an engine on this machine: weights, KV memory by what is left, and a runner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from optimized.compile.library import keep_in
from optimized.kernels.moe_dispatch_launch import dispatch_rows
from optimized.model.experts import EXPERT_TILE
from optimized.model.machine import Machine
from optimized.model.runner import BLOCK_SIZE, DeviceRunner
from optimized.model.supported import check_supported
from reference.formats import FLOAT32
from reference.model.config import ModelConfig
from reference.model.tensors import checkpoint_tensors
from reference.serving.request import MAX_TOP_LOGPROBS
from reference.serving.runner import Refused

MEMORY_SHARE = 0.95  # of the free memory, which weights, KV memory and what a step needs may fill
STEP_TOKENS = 8192  # of the largest step, where nothing else is asked for
STEP_ROWS = 256  # of them that sample
FIXED_BYTES = 1 << 30  # loaded kernels, workspaces of libraries, and what the graphs of decode steps keep


class OutOfMemory(Refused):
    """A model does not fit; the message says what would."""


def build_runner(
    config: ModelConfig,
    tensors: Mapping[str, np.ndarray],
    *,
    num_token_ids: int,
    max_model_len: int,
    num_kv_tokens: int | None = None,
    max_rows: int = STEP_ROWS,
    max_tokens: int = STEP_TOKENS,
    cache: Path | None = None,
) -> DeviceRunner:
    """The panel on the first GPU that torch finds. num_kv_tokens: capacity of KV memory; None takes what is free.
    max_rows, max_tokens: of a step. cache: a folder where compiled kernels are kept; None: as
    `optimized.compile.library` says.

    Errors: Refused: UnsupportedModel, OutOfMemory, or no GPU.
    """
    from optimized.model.gpu_machine import GpuMachine

    check_supported(config)
    machine = GpuMachine()
    if cache is not None:
        keep_in(cache)
    limits = {"num_token_ids": num_token_ids, "max_model_len": max_model_len}
    limits |= {"max_rows": max_rows, "max_tokens": max_tokens}
    return runner_on(machine, config, tensors, num_kv_tokens=num_kv_tokens, **limits)


def runner_on(
    machine: Machine,
    config: ModelConfig,
    tensors: Mapping[str, np.ndarray],
    *,
    num_token_ids: int,
    max_model_len: int,
    num_kv_tokens: int | None = None,
    max_rows: int = STEP_ROWS,
    max_tokens: int = STEP_TOKENS,
    block_size: int = BLOCK_SIZE,
) -> DeviceRunner:
    """The panel on a machine. Errors: UnsupportedModel, OutOfMemory."""
    check_supported(config)
    step = step_bytes(config, max_tokens, max_rows)
    num_blocks = kv_blocks(config, machine.free_bytes(), step, max_model_len, num_kv_tokens, block_size)
    limits = {"num_token_ids": num_token_ids, "max_model_len": max_model_len}
    return DeviceRunner(config, tensors, machine, num_blocks=num_blocks, block_size=block_size, **limits)


def weight_bytes(config: ModelConfig) -> int:
    """Of all that is loaded: the layers that predict several tokens are not."""
    tensors = checkpoint_tensors(config).items()
    sizes = (int(np.prod(spec.shape)) * spec.format.dtype.itemsize for name, spec in tensors if name[:4] != "mtp.")
    return sum(sizes)


def step_bytes(config: ModelConfig, max_tokens: int, max_rows: int) -> int:
    """Of what the largest step needs beside weights and KV memory, roughly: the widest rows of a layer, with the rows
    that pad an expert's tile, and logits three times, for a graph, for penalties and as they were."""
    size = config.dtype.dtype.itemsize
    q_and_kv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    of_token = size * (4 * config.hidden_size + 2 * q_and_kv) + FLOAT32.dtype.itemsize * config.hidden_size
    if any(config.sparse_layers):
        rows = dispatch_rows(max_tokens, config.num_experts_per_token, config.num_experts, tile=EXPERT_TILE)
        of_experts = size * rows * (2 * config.hidden_size + 3 * config.moe_intermediate_size)
    else:
        of_experts = size * max_tokens * 3 * config.intermediate_size
    of_row = (3 * config.vocab_size + MAX_TOP_LOGPROBS) * FLOAT32.dtype.itemsize
    return FIXED_BYTES + max_tokens * of_token + of_experts + max_rows * of_row


def kv_blocks(
    config: ModelConfig, free_bytes: int, step: int, max_model_len: int, num_kv_tokens: int | None, block_size: int
) -> int:
    """How many blocks of KV memory there are to be. step: bytes that are kept back for it.

    Errors: OutOfMemory that says what would fit."""
    of_block = 2 * config.num_layers * config.num_kv_heads * config.head_dim * config.dtype.dtype.itemsize * block_size
    weights = weight_bytes(config)
    room = int(free_bytes * MEMORY_SHARE) - weights - step
    most = room // of_block
    needed = f"weights take {_gb(weights)} GB and a step {_gb(step)} GB of the {_gb(free_bytes)} GB that are free"
    if most < 1:
        raise OutOfMemory(f"the model does not fit: {needed}, which leaves nothing for KV memory")
    asked = most if num_kv_tokens is None else -(-num_kv_tokens // block_size)
    if asked > most:
        raise OutOfMemory(
            f"KV memory of {num_kv_tokens} tokens takes {_gb(asked * of_block)} GB, and there is room for "
            f"{_gb(max(room, 0))} GB: {needed}. --kv-cache-tokens {most * block_size} would fit: "
            f"{most * block_size // max_model_len} sequences of {max_model_len} tokens"
        )
    return asked


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f}"
