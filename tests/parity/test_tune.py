"""`diptych tune`, as far as it goes without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from engine.checkpoint import shape_file
from engine.checkpoint.checkpoint import read_config
from engine.cli import main
from engine.usage import UsageError
from optimized.compile.arch import SM_90A, SM_100A, Arch
from optimized.compile.build import CompileError
from optimized.compile.kernel import Kernel
from optimized.device import CompileOnly
from optimized.kernels.linear_many_rows_gemm import TILINGS, ManyRowsGemm
from optimized.tuned import Measured, Tuned, file_name, read
from parity.bench import build_each as building
from parity.bench import tune_measure
from parity.bench.tune_measure import Found, time_each
from parity.bench.tune_work import Subject, subjects_of
from parity.commands.tune import _add_row, _parser, _require_known, write


def subjects(name: str, tokens: int) -> dict[str, Subject]:
    file = shape_file(name)
    assert file is not None
    return {one.what: one for one in subjects_of(read_config(file, None), tokens)}


def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["tune", "qwen3-8b"]) == 2
    assert "diptych tune measures on a GPU, and there is none here" in capsys.readouterr().err


def test_the_operations_of_a_dense_model() -> None:
    found = subjects("qwen3-8b", 2048)
    assert found["qkv"].sizes == (6144, 4096) and found["down"].sizes == (4096, 12288)
    assert found["gate and up"].sizes == (24576, 4096) and found["gate and up"].operation == "gated_linear"
    assert found["attention"].sizes == (32, 8, 128, 128)
    assert all(one.rows == 2048 for one in found.values())
    assert "router" not in found


def test_the_operations_of_experts() -> None:
    found = subjects("qwen3-30b-a3b", 512)
    assert found["experts: gate and up"].sizes == (128, 1536, 2048) and found["experts: down"].sizes == (128, 2048, 768)
    assert found["experts: down"].rows >= 512 * 8, "with padding"
    assert found["experts: down"].flops == 2.0 * 512 * 8 * 2048 * 768
    assert "down" not in found


@pytest.mark.parametrize("arch", [SM_90A, SM_100A])
def test_every_choice_has_its_kernel(arch: object) -> None:
    assert arch in (SM_90A, SM_100A)
    for one in (*subjects("qwen3-8b", 512).values(), *subjects("qwen3-30b-a3b", 512).values()):
        choices = list(one.choices(arch))  # type: ignore[arg-type]
        kernels = list(one.kernels(arch, 100, choices))  # type: ignore[arg-type]
        others = [choice for choice in choices if choice in ("cublas", "torch")]
        assert len(kernels) == len(choices) - len(others) > 0
        gemms = [kernel for kernel in kernels if isinstance(kernel, ManyRowsGemm)]
        assert all(kernel.clusters * kernel.cluster_m * kernel.cluster_n <= 100 for kernel in gemms)
        assert len(others) == ("linear" in one.operation and "gated" not in one.operation)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    one = Measured("linear", (64, 32), 128, "bfloat16", {"cublas": 2.5, "quack 128x192 2x1 pingpong": 1.25})
    other = Measured("linear", (64, 32), 16, "bfloat16", {"cublas": 1.0})
    file = tmp_path / "tuned" / file_name("NVIDIA H200")
    versions = {"torch": "2.0"}
    write(file, "NVIDIA H200", versions, [one, other])
    assert read(file) == ([other, one], versions)
    again = Measured("linear", (64, 32), 128, "bfloat16", {"cublas": 1.5})
    write(file, "NVIDIA H200", versions, Tuned([*read(file)[0], again]).measured.values())
    assert read(file) == ([other, again], versions)


def test_a_file_is_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, file = Measured("linear", (64, 32), 128, "bfloat16", {"cublas": 2.5}), tmp_path / file_name("NVIDIA H200")
    write(file, "NVIDIA H200", {}, [one])
    write_text = Path.write_text

    def half(path: Path, text: str, **named: str) -> None:
        write_text(path, text[: len(text) // 2], **named)
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="no space left"):
        write(file, "NVIDIA H200", {}, [one, one])
    assert read(file) == ([one], {}) and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("options", [["--tokens", "0"], ["--tokens", "128", "-1"], ["--jobs", "0"], ["--jobs", "many"]])
def test_numbers_that_make_no_sense_are_refused(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["qwen3-8b", *options])
    assert "is not a number of 1 or more" in capsys.readouterr().err


def test_a_choice_that_there_is_not_cannot_be_left_out() -> None:
    """It could be one that was misspelt, and that leaves the GPU in an error."""
    choices = list(subjects("qwen3-8b", 512)["qkv"].choices(SM_90A))
    _require_known(choices[:2], choices)
    with pytest.raises(UsageError, match="--without 'quack 128x256': there is no such choice here; there are cublas, "):
        _require_known([choices[0], "quack 128x256"], choices)


def test_what_does_not_compile_is_told_and_the_rest_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = list(subjects("qwen3-8b", 512)["qkv"].kernels(SM_90A, 132, [f"quack {one}" for one in TILINGS[9]]))
    bad, crashing = kernels[1], kernels[4]
    built: list[Kernel] = []

    def build_all(some: list[tuple[Kernel, Arch]], directory: Path, *, jobs: int) -> None:
        for kernel, arch in some:
            if kernel == bad:
                raise CompileError(f"{kernel} does not compile for {arch.name}: it is bad")
            if kernel == crashing:
                raise BrokenProcessPool("a process in the process pool was terminated abruptly")
            built.append(kernel)

    monkeypatch.setattr(building, "build_all", build_all)
    monkeypatch.setattr(building, "cache_directories", lambda: (tmp_path,))
    failed = building.build_each(kernels, SM_90A, jobs=2)
    assert failed == {
        bad: "does not compile for sm_90a: it is bad",
        crashing: "a process in the process pool was terminated abruptly",
    }
    assert set(built) == set(kernels) - {bad, crashing}


def test_choices_that_do_not_compile_or_are_not_wanted_are_left_out() -> None:
    subject, device = subjects("qwen3-8b", 512)["qkv"], CompileOnly(SM_90A, lambda *_: None)
    first, second, *rest = (f"quack {one}" for one in TILINGS[9])
    (kernel,) = subject.kernels(SM_90A, device.num_sms, [first])
    failed, choices = tune_measure._sorted_out(subject, device, {kernel: "does not compile"}, [second])
    assert failed == {first: "does not compile", second: "not tried"}
    assert choices == ["cublas", *rest]


def test_what_the_gpu_has_no_room_for_is_told_and_the_rest_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 7 GiB")

    monkeypatch.setattr(tune_measure, "maker", lambda *_: full)
    monkeypatch.setattr(tune_measure, "sets_for", lambda _: 2)
    subject, device = subjects("qwen3-8b", 512)["qkv"], CompileOnly(SM_90A, lambda *_: None)
    found = tune_measure.measure(subject, device, 8, {}, ["cublas"])
    assert found.times == {} and found.is_alive
    assert found.failed.pop("cublas") == "not tried"
    assert set(found.failed.values()) == {"OutOfMemoryError: tried to allocate 7 GiB"}


def test_a_choice_that_fails_leaves_the_others() -> None:
    def timed(calls: list[Callable[[], float]]) -> float:
        return calls[0]()

    def fails() -> float:
        raise RuntimeError("'quack' failed") from CompileError("it is bad [/here]")

    def dies() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    calls = {"cublas": [lambda: 2.0], "quack 128x256 2x1": [fails], "quack 256x128 2x1": [lambda: 1.0]}
    found = time_each(calls, {"torch": "not tried"}, timed, lambda: None)  # type: ignore[arg-type]
    assert found.times == {"cublas": 2.0, "quack 256x128 2x1": 1.0} and found.is_alive
    assert found.failed == {"torch": "not tried", "quack 128x256 2x1": "CompileError: it is bad [/here]"}
    dead = time_each(calls, {}, timed, dies)  # type: ignore[arg-type]
    assert dead.times == {"cublas": 2.0} and not dead.is_alive and list(dead.failed) == ["quack 128x256 2x1"]

    console = Console(width=300, file=StringIO())
    table = Table(*"123456789", "left out")
    for one in (found, Found({}, found.failed)):
        _add_row(table, subjects("qwen3-8b", 512)["qkv"], one)
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert sum("quack 128x256 2x1: CompileError: it is bad [/here]" in line for line in lines) == 2
    assert any("none" in line for line in lines)
