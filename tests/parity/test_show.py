"""`diptych show` sets both panels side by side, and says what is launched."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from engine import cli
from optimized.compile.arch import SM_90A, SM_100A
from optimized.compile.artifact import Artifact, Resources
from parity import cases
from parity.report.occupancy import residency, threads_of
from parity.report.sources import sources

PTX = """.visible .entry first(
\t.param .align 64 .b8 first_param_0[32]
)
.reqntid 256, 1, 1
{
}
.visible .entry second(.param .u64 p)
{
\t// .reqntid 7
}
"""
SMALL = '{"tokens": 3, "hidden": 64}'


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all tests of a process."""
    pytest.importorskip("cutlass")
    monkeypatch.setenv("DIPTYCH_CACHE", str(tmp_path_factory.getbasetemp() / "diptych"))


def show(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["show", "rms_norm", *arguments]) == 0
    return capsys.readouterr().out


def test_two_texts_and_a_launch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    told = show(capsys, "--config", SMALL)
    places = [told.index(text) for text in ("reference/kernels/rms_norm.py", "optimized/kernels/rms_norm.py", "sm_90a")]
    assert places == sorted(places)
    assert "Root-mean-square normalisation" in told and "@cute.kernel" in told
    launch = told[places[-1] :]
    assert "H200" in launch and re.search(r"hidden_size +64", launch) and re.search(r'dtype +"bfloat16"', launch)
    assert re.search(r"\d+ registers, 0 bytes of local memory a thread; \d+ bytes of shared memory a block", launch)
    assert re.search(
        r"\d+ threads a block; \d+ blocks a multiprocessor, for want of \w+ \(\d+% of its threads\)", launch
    )


def test_side_by_side_where_there_is_room(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    first = show(capsys, "--config", SMALL).splitlines()[0]
    assert first.index("reference/kernels/rms_norm.py") < 120 < first.index("optimized/kernels/rms_norm.py")


def test_the_default_is_a_call_that_launches(capsys: pytest.CaptureFixture[str]) -> None:
    assert "RmsNorm" in show(capsys)


def test_ptx_alone_for_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    told = show(capsys, "--ptx", "--arch", "sm_100a", "--config", SMALL)
    assert told.lstrip().startswith("//") and ".target sm_100a" in told
    assert "def rms_norm" not in told


def test_nothing_to_compute(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing: there is nothing to compute" in show(capsys, "--config", '{"tokens": 0}')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rms_nrom"], "unknown twin 'rms_nrom'; did you mean 'rms_norm'?"),
        (["rms_norm", "--arch", "sm_9"], "unknown architecture 'sm_9'"),
        (["rms_norm", "--config", '{"dtype": "int3"}'], "rms_norm cannot be called with "),
        (["rms_norm", "--config", "tokens=1"], "a configuration is a JSON object; 'tokens=1' is none"),
    ],
)
def test_errors_of_the_user(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert cli.main(["show", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"diptych: {message}")


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("rms_norm", {"tokens": 10**15}),  # MemoryError
        ("rms_norm", {"tokens": 10**30}),  # OverflowError
        ("rms_norm", {"tokens": -1}),
        ("rms_norm", {"tokens": "many"}),
        ("rms_norm", {"weight_bias": None}),
        ("kv_write", {"block_size": 0}),  # ZeroDivisionError
        ("gated_activation", {"kind": 3}),
        ("router_top_k", {"k": None}),
    ],
    ids=str,
)
def test_odd_configurations_are_errors_of_the_user_and_nothing_else_is_printed(
    name: str, config: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["show", name, "--config", json.dumps(config)]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith(f"diptych: {name} cannot be called with {{")


@pytest.mark.parametrize("name", cases.names())
def test_every_twin_has_its_texts(name: str) -> None:
    reference, optimized = sources(cases.twin_named(name))
    assert reference.path.startswith("reference/kernels/") and optimized.path.startswith("optimized/kernels/")
    assert Path(reference.path).suffix == ".py" and "def " in reference.text
    assert "@cute" in optimized.text or "device_of(" in optimized.text, "a kernel, or what launches one"


def test_threads_are_what_the_ptx_fixes() -> None:
    artifact = Artifact("f", "sm_90a", b"", PTX, (), 0.0)
    assert threads_of(artifact, "first") == 256
    assert threads_of(artifact, "second") is None
    assert threads_of(artifact, "third") is None


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "limit"),
    [
        (256, 32, 0, 8, "registers"),  # 65536 / (32 x 256), and 2048 / 256: both are 8
        (256, 40, 0, 6, "registers"),
        (1024, 65, 0, 0, "registers"),  # 72 registers x 1024 threads are more than there are
        (128, 16, 0, 16, "threads"),
        (32, 16, 0, 32, "blocks"),
        (32, 16, 100 * 1024, 2, "shared memory"),
    ],
)
def test_residency(threads: int, registers: int, shared: int, blocks: int, limit: str) -> None:
    for arch in (SM_90A, SM_100A):
        found = residency(threads, Resources("k", registers, shared, 0), arch)
        assert (found.blocks, found.limit) == (blocks, limit)
        assert found.share == pytest.approx(blocks * threads / 2048)
