"""Settings that hold for every test."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest
from hypothesis import settings

# Machines differ in speed, and JAX compiles at first use: an example that is slow is no failure.
settings.register_profile("diptych", deadline=None)
settings.load_profile("diptych")


def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Without a GPU, tests that need one are skipped; with DIPTYCH_REQUIRE_GPU=1 they run, and fail."""
    of_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not of_gpu or os.environ.get("DIPTYCH_REQUIRE_GPU") == "1":
        return
    import torch

    if not torch.cuda.is_available():
        for item in of_gpu:
            item.add_marker(pytest.mark.skip(reason="there is no GPU here"))
