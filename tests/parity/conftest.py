"""The executor of a GPU, on a machine that has none."""

from __future__ import annotations

import pytest

from tests.parity.host import HostExecutor


@pytest.fixture
def host() -> HostExecutor:
    return HostExecutor()
