"""`diptych compile` on a machine without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import cli
from optimized.compile.arch import SM_90A, SM_100A
from optimized.compile.build import build
from optimized.compile.disk_cache import DiskCache
from optimized.compile.library import Library
from optimized.kernels.rms_norm import RmsNorm
from optimized.model import kernels as model_kernels
from tests.optimized.fakes import Scale

KERNELS = [Scale(2.0), Scale(3.0)]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that needs little."""
    monkeypatch.setattr(model_kernels, "kernels_of", lambda config, arch, *, max_tokens, num_sms: KERNELS)


@pytest.mark.usefixtures("few")
def test_kernels_are_built_and_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compile", "qwen3-8b", "--arch", "sm_90a,sm_100a", "--jobs", "2", "--out", str(tmp_path / "built")]
    assert cli.main(command) == 0
    assert "4 kernels for sm_90a, sm_100a are in" in capsys.readouterr().out
    monkeypatch.setattr("optimized.compile.library.build", lambda *_: pytest.fail("it was built already"))
    found = Library((tmp_path / "cache", tmp_path / "built"))
    for kernel in KERNELS:
        for arch in (SM_90A, SM_100A):
            assert found.artifact(kernel, arch).arch == arch.name
    assert cli.main(command) == 0, "what is there is not built again"
    assert len(list(DiskCache(tmp_path / "built").directory.glob("*.kernel"))) == 4


def test_a_model_needs_kernels_of_its_own_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = []
    monkeypatch.setattr(
        "optimized.compile.ahead.build_all", lambda kernels, *_, **__: found.extend(kernel for kernel, _ in kernels)
    )
    for model, hidden in [("qwen3-0.6b", 1024), ("moe", None)]:
        found.clear()
        assert cli.main(["compile", model, "--arch", "sm_90a", "--max-tokens", "64", "--out", str(tmp_path)]) == 0
        names = {type(kernel).__name__ for kernel in found}
        assert {"Embedding", "RmsNorm", "Linear", "QkNormRopeKvWrite", "PagedAttention"} <= names
        assert ("RouterTopK" in names) == ("RoutedLinear" in names) == (model == "moe")
        if hidden:
            assert {kernel.hidden_size for kernel in found if isinstance(kernel, RmsNorm)} == {hidden}


def test_kernels_for_a_chip_of_other_multiprocessors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: dict[str, set[str]] = {}
    for sms in ("132", "78", None):
        monkeypatch.setattr(
            "optimized.compile.ahead.build_all",
            lambda kernels, *_, sms=sms, **__: found.update({str(sms): {repr(kernel) for kernel, _ in kernels}}),
        )
        chip = [] if sms is None else ["--sms", sms]
        command = ["compile", "moe", "--arch", "sm_90a", "--max-tokens", "600", "--out", str(tmp_path)]
        assert cli.main([*command, *chip]) == 0
    assert found["132"] == found["None"], "an H200 has so many"
    of_grid = [kernel for kernel in found["78"] if kernel.startswith("MoeDispatchTogether")]
    assert of_grid and all("blocks=78," in kernel for kernel in of_grid)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["qwen3-8b", "--sms", "0"], "--sms is a number of multiprocessors, 1 or more; 0 is none"),
        (["qwen3-8b", "--arch", "sm_80"], "unknown architecture 'sm_80'; known are sm_90a, sm_100a, sm_103a"),
        (["qwen9"], "there is no model 'qwen9'"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_build_is_what_ahead_of_time_calls() -> None:
    """The patch above is of the name that would build."""
    from optimized.compile import library

    assert library.build is build
