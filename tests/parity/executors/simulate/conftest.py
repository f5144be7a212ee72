"""Compiled kernels are shared by the tests of a session."""

from __future__ import annotations

import pytest

from optimized.compile.library import Library


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library((tmp_path_factory.mktemp("kernels"),))
