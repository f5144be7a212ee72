"""A small model that obeys its prompt, behind the panel `reference`."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import panels
from tests.engine.commands.files import Files
from tests.engine.text_side import write_model

OBEDIENT = "tests.engine.fakes:build_core"


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the model. It has no weights: `--load-format dummy`."""
    directory = tmp_path_factory.mktemp("obedient")
    write_model(directory)
    return directory


@pytest.fixture
def obedient(model: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The arguments that load it."""
    monkeypatch.setitem(panels.PANELS, "reference", panels.Panel(OBEDIENT, makes_core=True))
    return [str(model), "--load-format", "dummy"]


@pytest.fixture
def files(obedient: list[str], tmp_path: Path) -> Files:
    """A file of requests to that model, and one for its answers."""
    return Files(tmp_path, obedient)
