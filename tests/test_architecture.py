"""The arrows between the packages hold, and the check that keeps them can fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("reference", "optimized", "engine", "parity", "simulators")

PLANTED = {
    "reference -> engine": ("reference/kernels/planted.py", "import engine.cli"),
    "reference -> parity": ("reference/model/planted.py", "import parity"),
    "simulators -> reference": ("simulators/planted.py", "import reference.formats"),
    "engine -> reference arithmetic": ("engine/planted.py", "from reference.kernels.rms_norm import rms_norm"),
    "engine -> reference, in a function": ("engine/planted.py", "def f():\n    import reference.model.qwen3"),
    "engine -> optimized": ("engine/api/planted.py", "import optimized"),
    "optimized -> reference arithmetic": ("optimized/planted.py", "import reference.kernels.rope"),
    "optimized -> engine": ("optimized/planted.py", "import engine"),
    "engine -> jax": ("engine/planted.py", "import jax"),
    "engine -> torch": ("engine/planted.py", "import torch"),
    "reference -> torch": ("reference/planted.py", "import torch"),
    "declarations -> jax": ("reference/formats.py", "import jax"),
}


def lint_imports(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    return subprocess.run(command, cwd=directory, env={"PYTHONPATH": "."}, capture_output=True, text=True, check=False)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of the sources alone, to plant things in."""
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package,
            tmp_path / package,
            ignore=lambda _, names: [n for n in names if "." in n[1:] and not n.endswith(".py")],
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_arrows_hold(house: Path) -> None:
    result = lint_imports(house)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_fails(house: Path, name: str) -> None:
    path, line = PLANTED[name]
    with open(house / path, "a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    result = lint_imports(house)
    assert result.returncode != 0, f"{name} went unnoticed"
    assert "BROKEN" in result.stdout


def test_engine_and_declarations_load_without_jax_and_torch() -> None:
    program = (
        "import sys, engine.cli, reference.formats, reference.model.tensors, reference.serving.request\n"
        "loaded = {'jax', 'torch', 'cutlass'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
