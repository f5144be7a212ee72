"""`diptych parity` says what holds, what does not, and how to see it again."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
from rich.console import Console

from engine import cli
from engine.usage import UsageError
from optimized.compile.arch import ARCHS, SM_90A
from parity import cases
from parity.commands import choose, on_device, parity, workers
from parity.commands.tried import Spread
from parity.commands.workers import Case, compile_cases
from parity.executors.executor import Skip
from parity.harness import record_of
from parity.record import Record
from parity.report.table import following, line, print_end, repeat_command, table
from parity.report.tally import Tally
from parity.twin import Config, Twin
from tests.parity.host import CORNER, RMS_NORM, ROUTER, Here, HostExecutor, planted


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> dict[str, Twin]:
    """The twins there are: fakes. May be added to."""
    known = {"rms_norm": RMS_NORM, "router_top_k": ROUTER}
    monkeypatch.setattr(cases, "names", lambda: sorted(known))
    monkeypatch.setattr(cases, "twin_named", known.__getitem__)
    return known


@pytest.fixture
def gpu(twins: dict[str, Twin], host: HostExecutor, monkeypatch: pytest.MonkeyPatch) -> Here:
    here = Here(host)
    monkeypatch.setattr(on_device, "gpu", lambda seconds: here)
    return here


def compiled(case: Case) -> Record:
    """In place of compilation: what has 7 tokens is refused."""
    tokens = case.config["tokens"]
    if tokens == 7:
        return Record(case.twin, "compile", case.arch, None, dict(case.config), 1, "fail", reason="it is refused")
    return Record(case.twin, "compile", case.arch, None, dict(case.config), 1, "ok", registers=40 + tokens, seconds=0.5)


@pytest.fixture
def compiler(twins: dict[str, Twin], monkeypatch: pytest.MonkeyPatch) -> None:
    def in_no_order(tried: Sequence[Case], jobs: int) -> Iterator[Record]:
        return map(compiled, reversed(tried))

    monkeypatch.setattr(workers, "compile_cases", in_no_order)


def run(arguments: str) -> int:
    return cli.main(["parity", *shlex.split(arguments)])


def test_all_holds(gpu: Here, compiler: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--search 0") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * (len(ARCHS) + 1) + 2
    assert "ok: rms_norm on compile sm_90a: 5 cases, 49 registers, 0 B shared, 0 B local, 2.5 s" in lines
    assert re.search(r"^ok: rms_norm on device sm_90a: 5 cases, \S+ of \S+ ULP, \d", "\n".join(lines), re.MULTILINE)
    assert lines[-1] == "2 twins, 40 cases: all hold"


def test_a_failure_is_told_with_what_repeats_it(
    gpu: Here, twins: dict[str, Twin], capsys: pytest.CaptureFixture[str]
) -> None:
    twins["rms_norm"] = planted(RMS_NORM, "number_where_nan_is")
    assert run("--on device --search 0") == 1
    told = capsys.readouterr().out
    assert "1 failed: rms_norm on device sm_90a: 5 cases" in told
    assert "ok: router_top_k on device" in told
    assert "is off by inf ULP" in told
    assert told.splitlines()[-1] == "2 twins, 10 cases: 1 failed"
    (command,) = re.findall("^diptych parity .*", told, re.MULTILINE)
    assert cli.main(shlex.split(command)[1:]) == 1
    again = capsys.readouterr().out
    assert command in again and again.splitlines()[-1] == "1 twin, 1 case: 1 failed"
    twins["rms_norm"] = RMS_NORM
    assert cli.main(shlex.split(command)[1:]) == 0


def test_what_does_not_compile_is_a_failure(compiler: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("""rms_norm --on compile --arch sm_103a,sm_90a --case '{"tokens": 7}'""") == 1
    told = capsys.readouterr().out
    assert "it is refused" in told
    config = json.dumps(CORNER | {"tokens": 7})
    assert f"diptych parity rms_norm --on compile --arch sm_90a --case '{config}'" in told
    assert told.count("FAIL") == 2


def test_json_has_every_case_in_order(gpu: Here, compiler: None, tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    assert run(f"rms_norm --search 3 --seed 5 --json {file} --arch sm_100a") == 0
    records = json.loads(file.read_text())
    assert [one["executor"] for one in records] == ["compile"] * (len(records) // 2) + ["device"] * (len(records) // 2)
    assert len(records) > 2 * len(list(RMS_NORM.corners()))
    assert [one["config"] for one in records[:5]] == list(RMS_NORM.corners())
    promised = "twin executor arch chip config seed status ok max_ulp bound mismatches".split()
    assert all(set(promised) <= one.keys() for one in records)
    assert all(one["ok"] is True and one["status"] == "ok" for one in records)


def hangs_or_dies(executor: object, twin: Twin, config: Config) -> tuple[Record, Spread]:
    """What has 7 tokens never ends, what has 8 ends the process, what has 9 loses the GPU."""
    tokens = config["tokens"]
    if tokens == 7:
        time.sleep(1000)
    if tokens == 8:
        os._exit(1)
    place = workers.Place("device", SM_90A, "none")
    return record_of(twin, config, place, "fail" if tokens == 9 else "ok", registers=os.getpid()), {}


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes see what tests put in place of things."""
    monkeypatch.setattr(on_device, "CONTEXT", get_context("fork"))
    monkeypatch.setattr(on_device, "tried", hangs_or_dies)
    monkeypatch.setattr(on_device, "_is_lost", lambda: True)


def test_a_case_that_does_not_end_takes_its_process_with_it_and_no_other_case(
    twins: dict[str, Twin], forked: None
) -> None:
    device = on_device.Apart(HostExecutor, seconds=2)
    assert (device.name, device.arch.name, device.chip) == ("device", "sm_90a", "none")
    configs = [CORNER | {"tokens": tokens} for tokens in (1, 2, 7, 3, 8, 4, 9, 5)]
    records = list(on_device.try_on_device(device, [(RMS_NORM, config) for config in configs], {}))
    device.close()
    assert [one.config for one in records] == configs
    assert [(one.config["tokens"], one.reason) for one in records if not one.ok] == [
        (7, "it did not end within 2 seconds"),
        (8, "the process that ran it died"),
        (9, None),
    ]
    first, second, *later = [one.registers for one in records if one.ok]
    assert first == second and len({first, *later}) == 4, "the rest ran in new processes"


def test_where_no_new_process_begins_the_rest_is_skipped(
    twins: dict[str, Twin], forked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = on_device.Apart(HostExecutor, seconds=60)
    device.try_case(RMS_NORM, CORNER | {"tokens": 9})

    def refuses() -> HostExecutor:
        raise Skip("there is no GPU here")

    monkeypatch.setattr(device, "_make", refuses)
    record, _ = device.try_case(RMS_NORM, CORNER)
    assert (record.status, record.reason) == ("skipped", "after the case before it, device: there is no GPU here")
    with pytest.raises(UsageError, match=r"^device: there is no GPU here$"):
        on_device.Apart(refuses)


@pytest.mark.slow
def test_a_process_of_its_own_is_spawned() -> None:
    """As on a GPU: nothing comes with it but what is imported."""
    device = on_device.Apart(HostExecutor)
    record, _ = device.try_case(cases.twin_named("rms_norm"), CORNER)
    device.close()
    assert record.reason is not None and "tensor is on cpu" in record.reason


def test_an_interrupt_loses_no_record(
    gpu: Here, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tries = Here.try_case

    def interrupted(self: Here, twin: Twin, config: Config) -> tuple[Record, Spread]:
        if config["rows"] == "nan":
            raise KeyboardInterrupt
        return tries(self, twin, config)

    monkeypatch.setattr(Here, "try_case", interrupted)
    json_file, html_file = tmp_path / "records.json", tmp_path / "page.html"
    assert run(f"rms_norm --on device --search 0 --json {json_file} --html {html_file}") == 130
    assert len(json.loads(json_file.read_text())) == 3
    assert "Of 5 cases: 2 have no record." in html_file.read_text()


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_file_that_cannot_be_written_is_told_of_before_the_run(
    gpu: Here, monkeypatch: pytest.MonkeyPatch, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Here, "try_case", None)
    assert run(f"--on device --search 0 {option} {tmp_path}") == 2
    assert capsys.readouterr().err == f"diptych: {tmp_path}: Is a directory\n"


def test_a_file_stays_as_it_was_where_nothing_runs(gpu: Here, tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    file.write_text("earlier")
    assert run(f"rms_norm --on devise --json {file}") == 2
    assert file.read_text() == "earlier"


def test_no_case_is_not_all_cases(gpu: Here, twins: dict[str, Twin], capsys: pytest.CaptureFixture[str]) -> None:
    twins["rms_norm"] = replace(RMS_NORM, corners=lambda: [])
    assert run("rms_norm --on device --search 0") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 twin, 0 cases: nothing was tried"


def test_a_case_without_a_record_does_not_hold(
    gpu: Here, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(on_device, "try_on_device", lambda *_: iter(()))
    assert run("--on device --search 0") == 1
    assert capsys.readouterr().out.splitlines()[-1] == "2 twins, 10 cases: 10 have no record"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rms_nrom", "unknown twin 'rms_nrom'; did you mean 'rms_norm'?"),
        ("xyzzy", "unknown twin 'xyzzy'; known are rms_norm, router_top_k"),
        ("--on devise", "unknown executor 'devise'; did you mean 'device'?"),
        ("--arch sm_90", "unknown architecture 'sm_90'; did you mean 'sm_90a'?"),
        ("--on device --arch sm_90a", "--arch is for compile and simulate; a device is what it is"),
        ("--case {}", "--case is a configuration of one twin: name it"),
        ("rms_norm --case '{}' --seed 1", "with --case nothing is searched: leave out --search and --seed"),
        ("rms_norm --case '[1]'", "a configuration is a JSON object; '[1]' is none"),
        ("rms_norm --case '{'", "a configuration is a JSON object; '{' is none: "),
        (
            "rms_norm --case '{\"tokns\": 1}'",
            "unknown part of a configuration of rms_norm 'tokns'; did you mean 'tokens'?",
        ),
        ('rms_norm --case \'{"dtype": "int3"}\'', "rms_norm cannot be called with "),
        ("rms_norm --case '{\"tokens\": -1}'", "rms_norm cannot be called with "),
        ("rms_norm --case '{\"tokens\": null}'", "rms_norm cannot be called with "),
        ("--json no/such/folder/file", "no/such/folder/file: No such file or directory"),
        ("--bench file", "--bench is shown by --html alone"),
    ],
)
def test_errors_of_the_user(
    gpu: Here, compiler: None, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().err.startswith(f"diptych: {message}")


def test_what_the_reference_refuses_is_no_failure_of_a_kernel(
    gpu: Here, twins: dict[str, Twin], capsys: pytest.CaptureFixture[str]
) -> None:
    twins["rms_norm"] = replace(RMS_NORM, reference="tests.parity.planted:raises")
    assert run("rms_norm --on device --case '{}'") == 2
    assert "rms_norm cannot be called with {" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["--jobs 0", "--search -1"])
def test_numbers_that_make_no_sense(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run(arguments)
    assert left.value.code == 2
    assert "is less than" in capsys.readouterr().err


def test_without_the_compiler_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(choose, "find_spec", lambda name: None)
    for command in (["parity"], ["show", "rms_norm"]):
        assert cli.main(command) == 2
        assert "cutlass and tvm_ffi cannot be imported; pip install 'diptych[compile]'" in capsys.readouterr().err


def test_without_a_gpu_device_is_refused_if_asked_for_and_else_left_out(
    compiler: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run("--on device,compile") == 2
    assert capsys.readouterr().err == "diptych: device: there is no GPU here\n"
    assert run("--search 0") == 0
    assert "on device" not in capsys.readouterr().out
    monkeypatch.setattr(on_device, "find_spec", lambda name: None)
    assert run("--on device") == 2
    assert "pip install 'diptych[gpu]'" in capsys.readouterr().err


def test_a_part_of_a_configuration_is_completed(twins: dict[str, Twin]) -> None:
    assert choose.configuration(RMS_NORM, '{"tokens": 3}') == CORNER | {"tokens": 3}
    whole = CORNER | {"tokens": 0, "rows": "nan"}
    assert choose.configuration(RMS_NORM, json.dumps(whole)) == whole


def tallies() -> list[Tally]:
    ok = Record("rms_norm", "device", "sm_90a", "H", {"tokens": 1}, 1, "ok", 0.5, 1.0, registers=20, local_bytes=0)
    equal = Record("router", "device", "sm_90a", "H", {"tokens": 1}, 1, "ok", 0.0, 0.0)
    fail = Record("router", "device", "sm_90a", "H", {"it's": 1}, 1, "fail", reason="because [bold]" + "x" * 2000)
    return [
        Tally("rms_norm", "device", "sm_90a", 1, [ok]),
        Tally("router", "device", "sm_90a", 2, [equal, fail]),
        Tally("rope", "compile", "sm_90a", 2, [ok]),
        Tally("rope", "compile", "sm_100a", 2, []),
    ]


def test_the_table_in_a_terminal() -> None:
    console = Console(width=120, force_terminal=True, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    shown = tallies()
    with following(console, shown) as tell:
        tell(shown[0])
    console.print(table(shown))
    text = console.export_text()
    for expected in ("worst ULP", "registers", "1 failed", "running", "waiting", "1/2", "equal", "0.5"):
        assert expected in text


def test_lines_and_the_end() -> None:
    shown = tallies()
    assert (
        line(shown[0])
        == "ok: rms_norm on device sm_90a: 1 cases, 0.5 of 1 ULP, 20 registers, 0 B shared, 0 B local, 0.0 s"
    )
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    print_end(console, shown)
    told = console.export_text()
    assert "because [bold]xxx" in told and "x ...\n" in told
    assert "3 twins, 7 cases: 1 failed" in told
    command = repeat_command(shown[1].failures[0])
    assert json.loads(shlex.split(command)[-1]) == {"it's": 1}


def dies(case: Case) -> Record:
    if case.config["tokens"] == 7:
        os._exit(1)
    return compiled(case)


@pytest.mark.parametrize(("numbers", "jobs"), [(range(12), 2), (range(12), 1), (range(7, 8), 1)], ids=str)
def test_a_process_that_dies_takes_one_case_with_it(numbers: range, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def forked(jobs: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(jobs, get_context("fork"))

    monkeypatch.setattr(workers, "compile_case", dies)
    monkeypatch.setattr(workers, "_pool", forked)
    tried = [Case("rms_norm", "compile", "sm_90a", CORNER | {"tokens": tokens}) for tokens in numbers]
    records = list(compile_cases(tried, jobs))
    assert sorted(one.config["tokens"] for one in records) == list(numbers)
    assert [(one.config["tokens"], one.reason) for one in records if not one.ok] == [
        (7, "the process that compiled it died")
    ]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_kernel_compiles_in_other_processes(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cutlass")
    monkeypatch.setenv("DIPTYCH_CACHE", str(tmp_path))
    library: Callable[..., object] = pytest.importorskip("optimized.compile.library").library
    library.cache_clear()  # type: ignore[attr-defined]
    config = next(iter(cases.twin_named("rms_norm").corners())) | {"tokens": 3, "hidden": 64}
    tried = [Case("rms_norm", "compile", arch, config) for arch in ("sm_90a", "sm_100a")]
    records = list(compile_cases(tried, jobs))
    library.cache_clear()  # type: ignore[attr-defined]
    assert all(one.ok and one.registers for one in records), [one.reason for one in records]
    assert {one.arch for one in records} == {"sm_90a", "sm_100a"}
    assert len(list(tmp_path.rglob("*.kernel"))) == 2


def test_help_explains(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("parity", "show"):
        with pytest.raises(SystemExit) as left:
            cli.main([name, "--help"])
        assert left.value.code == 0
        assert f"diptych {name}" in capsys.readouterr().out
    assert callable(parity.main)
