"""The executor of a GPU, on a machine that has none."""

from __future__ import annotations

import pytest
import torch

from tests.parity.host import HostExecutor


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> HostExecutor:
    """In host memory there is nothing to wait for."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return HostExecutor()
