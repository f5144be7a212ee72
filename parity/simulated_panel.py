"""The optimized panel on a simulated chip, behind the engine: the very kernels and the very host code, on a CPU, with
every check. To see what a GPU would answer where there is none; a token takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from optimized.compile.arch import SM_90A, SM_100A, Arch
from optimized.compile.library import Library
from optimized.model.build import runner_on
from optimized.model.runner import DeviceRunner
from parity.executors.simulate.machine import SimulatedMachine
from reference.model.config import ModelConfig

BLOCK_SIZE = 16  # tokens of a KV block: what is opened is cleared, and here each cleared byte takes time
NUM_KV_TOKENS = 4096


def build_runner(
    arch: Arch,
    config: ModelConfig,
    tensors: Mapping[str, np.ndarray],
    *,
    num_token_ids: int,
    max_model_len: int,
    num_kv_tokens: int | None = None,
    cache: Path | None = None,
) -> DeviceRunner:
    """As `optimized.model.build`, on a chip of the architecture. Errors: UnsupportedModel, OutOfMemory."""
    kernels = None if cache is None else Library((cache / "kernels",))
    return runner_on(
        SimulatedMachine(arch, kernels),
        config,
        tensors,
        num_token_ids=num_token_ids,
        max_model_len=max_model_len,
        num_kv_tokens=NUM_KV_TOKENS if num_kv_tokens is None else num_kv_tokens,
        block_size=BLOCK_SIZE,
    )


build_on_h200 = partial(build_runner, SM_90A)
build_on_b200 = partial(build_runner, SM_100A)
