"""Settings that hold for every test."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import settings

# Machines differ in speed, and JAX compiles at first use: an example that is slow is no failure.
settings.register_profile("diptych", deadline=None)
settings.load_profile("diptych")


def pytest_configure(config: pytest.Config) -> None:
    """What XLA compiles is kept in pytest's cache and found there by other workers, processes that tests start, and
    later runs. JAX files it under the program, its options and XLA's version; the processor is added here.

    `--cache-clear` compiles all anew. A folder that JAX has been told of already stays.
    """
    cache = getattr(config, "cache", None)
    if cache is None or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache.mkdir(f"jax-{_processor()}"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"


def _processor() -> str:
    """8 hexadecimal digits for its architecture and, where Linux tells, its model and instructions."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8").splitlines() if told.exists() else []
    facts = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return hashlib.sha256("\n".join([platform.machine(), *sorted(facts)]).encode()).hexdigest()[:8]


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Without a GPU, tests that need one are skipped; with DIPTYCH_REQUIRE_GPU=1 they run, and fail."""
    of_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not of_gpu or os.environ.get("DIPTYCH_REQUIRE_GPU") == "1":
        return
    import torch

    if not torch.cuda.is_available():
        for item in of_gpu:
            item.add_marker(pytest.mark.skip(reason="there is no GPU here"))
