"""`diptych simulate`: a kernel alone, its arguments from files and words, what it did, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from engine import cli

HEAD = ".version 8.8\n.target {target}\n.address_size 64\n"
# y = a * x for n elements; the fields of `tensor` are a pointer, n, and a stride that nobody reads.
SCALE = """
.visible .entry scale(.param .align 8 .b8 tensor[24], .param .u64 y, .param .f32 a)
{
    .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .f32 %f<4>;
    ld.param.u64 %rd1, [tensor];
    ld.param.u32 %r1, [tensor+8];
    ld.param.u64 %rd2, [y];
    ld.param.f32 %f1, [a];
    mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x;
    mad.lo.u32 %r2, %r3, %r4, %r2;
    setp.ge.u32 %p, %r2, %r1;
    @%p bra DONE;
    mul.wide.u32 %rd3, %r2, 4;
    add.u64 %rd1, %rd1, %rd3;
    add.u64 %rd2, %rd2, %rd3;
    ld.global.f32 %f2, [%rd1];
    mul.f32 %f2, %f2, %f1;
    st.global.f32 [%rd2], %f2;
DONE:
    ret;
}
"""
# Every thread adds one to the same word, with nothing between reading and writing.
RACE = """
.visible .entry race(.param .u64 x)
{
    .reg .b32 %r<3>; .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [x];
    ld.global.u32 %r1, [%rd1];
    mov.u32 %r2, %tid.x;
    add.u32 %r1, %r1, %r2;
    st.global.u32 [%rd1], %r1;
    ret;
}
"""
DEADLOCK = """
.visible .entry waits()
.reqntid 64, 1, 1
{
    .reg .pred %p; .reg .b32 %r<2>;
    mov.u32 %r1, %tid.x;
    setp.lt.u32 %p, %r1, 32;
    @%p bra DONE;
    barrier.sync 1, 64;
DONE:
    barrier.sync 2, 64;
    ret;
}
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Simulates a text in an empty folder: the exit code, and what is printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def simulate(body: str, *arguments: str, target: str = "sm_90a") -> tuple[int, str, str]:
        Path("kernel.ptx").write_text(HEAD.format(target=target) + body)
        try:
            code = cli.main(["simulate", "kernel.ptx", *arguments])
        except SystemExit as stopped:  # of argparse
            code = int(str(stopped.code))
        return code, *capsys.readouterr()

    return simulate


def scaled(run: Run, *arguments: str, y: str = "empty:f32:8x125") -> tuple[int, str, str]:
    np.save("x.npy", np.arange(1000, dtype=np.float32))
    given = ("--arg", "struct:x.npy,u32:1000,u32:0,u64:1", "--arg", y, "--arg", "f32:0.5")
    return run(SCALE, "--grid", "8", "--block", "128", *given, *arguments)


def test_result(run: Run) -> None:
    code, told, _ = scaled(run, "--out", "out/deep")
    assert code == 0
    assert "8 blocks of 128 threads" in told and "NVIDIA H200" in told
    result = np.load("out/deep/1-empty.npy")
    assert (
        result.dtype == np.float32 and np.array_equal(result.ravel(), np.arange(1000) / 2) and result.shape == (8, 125)
    )
    assert np.array_equal(np.load("out/deep/0.0-x.npy"), np.arange(1000))
    (row,) = [line.split() for line in told.splitlines() if line.startswith("1 ")]
    assert row == ["1", "empty", "float32", "8x125", "1,000", "0", "499.5", "0", "0"]


def test_counts(run: Run) -> None:
    code, told, _ = scaled(run, "--count")
    assert code == 0
    rows = [line.split() for line in told.splitlines()]
    assert ["mad", "1,024", "32"] in rows
    # 31 warps of 128 bytes, and one of 8 threads: 4 sectors each, and 1.
    assert ["global", "read", "32", "4,000", "125", "100%"] in rows
    assert ["in", "all", "1"] in rows


def test_a_hostile_order_by_seed(run: Run) -> None:
    splits = []
    for seed in ("3", "3", "4"):
        code, told, _ = scaled(run, "--count", "--seed", seed)
        assert code == 0
        splits.append(next(line for line in told.splitlines() if line.startswith("ld ")))
    assert splits[0] == splits[1] != splits[2]


def test_memory_that_holds_nothing(run: Run) -> None:
    given = ("--arg", "struct:empty:f32:1000,u32:1000,u32:0,u64:1", "--arg", "zeros:f32:1000", "--arg", "f32:1")
    code, told, _ = run(SCALE, "--grid", "8", "--block", "128", *given)
    assert code == 1 and "uninitialised read" in told and "0.0: empty:f32:1000" in told
    assert run(SCALE, "--grid", "8", "--block", "128", *given, "--check", "race")[0] == 0


def test_race(run: Run) -> None:
    np.save("x.npy", np.zeros(4, np.uint32))
    code, told, _ = run(RACE, "--grid", "1", "--block", "64", "--arg", "x.npy")
    assert code == 1 and "nothing orders them at PTX line 12" in told
    assert run(RACE, "--grid", "1", "--block", "64", "--arg", "x.npy", "--check", "none")[0] == 0


def test_out_of_bounds(run: Run) -> None:
    code, told, _ = scaled(run, "--out", "out", y="zeros:f32:999")
    assert (
        code == 1
        and "4 bytes at" in told
        and "1: zeros:f32:999" in told
        and "block (7, 0, 0) thread (103, 0, 0)" in told
    )
    assert not list(Path("out").iterdir())


def test_deadlock(run: Run) -> None:
    code, told, _ = run(DEADLOCK, "--grid", "1")
    assert code == 1 and "deadlock" in told


def test_one_file_is_one_array(run: Run) -> None:
    np.save("x.npy", np.full(1000, 3, np.float32))
    given = ("--arg", "struct:x.npy,u32:1000,u32:0,u64:1", "--arg", "x.npy", "--arg", "f32:2", "--out", ".")
    assert run(SCALE, "--grid", "8", "--block", "128", *given)[0] == 0
    assert np.array_equal(np.load("0.0-x.npy"), np.full(1000, 6))
    assert np.array_equal(np.load("x.npy"), np.full(1000, 3))


def test_bits(run: Run) -> None:
    np.save("x.npy", np.array([1.5, -2.0, 0.0, np.nan], ml_dtypes.bfloat16))  # read as plain bits of 2 bytes
    code, told, _ = run(RACE, "--grid", "1", "--block", "1", "--arg", "x.npy", "--out", "bits")
    assert code == 0 and "|V2" in told
    assert np.load("bits/0-x.npy").view(np.uint16).tolist() == np.load("x.npy").view(np.uint16).tolist()
    code, told, _ = run(RACE, "--grid", "1", "--block", "1", "--arg", "bf16:x.npy")
    assert code == 0 and ["bfloat16", "4", "0", "-2", "1.5", "1"] in [line.split()[2:] for line in told.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "--grid"),
        ("--grid 0", "at least 1"),
        ("--grid 1,1,1,1", "one to three"),
        ("--grid 1 --block 1 --check all", "'all' is no check"),
        ("--grid 1 --block 1 --shared -4", "--shared"),
        ("--grid 1 --block 1 --arch sm_80", "--arch"),
        ("--grid 1 --block 1 --arch sm_100a", "does not run on sm_100a; it runs on sm_90a"),
        ("--grid 1 --block 1 --kernel none", "there are: race"),
        ("--grid 1 --arg zeros:u32:1", "--block is missing"),
        ("--grid 1 --block 1", "takes 1 arguments, not 0: x of 8 bytes"),
        ("--grid 1 --block 2000 --arg zeros:u32:1", "2000"),
        ("--grid 1 --block 32 --arg zeros:u32:1 --shared 999999", "999999"),
        ("--grid 3 --block 32 --arg zeros:u32:1 --cluster 2", "clusters"),
        ("--grid 999999 --block 1024 --arg zeros:u32:1 --cooperative", "999999"),
        ("--grid 1 --block 1 --arg u32:1", "it has 4 bytes, and the parameter x has 8"),
        ("--grid 1 --block 1 --arg missing.npy", "cannot read missing.npy"),
        ("--grid 1 --block 1 --arg zeros:u32:1 --out kernel.ptx", "--out"),
    ],
)
def test_usage(run: Run, arguments: str, message: str) -> None:
    code, told, error = run(RACE, *arguments.split())
    assert code == 2 and message in " ".join(error.split()) and not told


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not PTX",
        RACE.replace("add.u32", "frobnicate.u32"),
        RACE.replace("%r1, [", "["),
        RACE.replace("add.u32 %r1, %r1, %r2", "shfl.sync.bfly.b32 %r1, %r2, 1"),
    ],
)
def test_texts_that_are_not_understood(run: Run, text: str) -> None:
    code, told, error = run(text, "--grid", "1", "--block", "1", "--arg", "zeros:u32:1")
    assert code == 2 and error.startswith("diptych: ") and not told


def test_files_that_cannot_be_read(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bytes.ptx").write_bytes(b"\xff\xfe")
    for name, message in (("absent.ptx", "cannot read absent.ptx"), ("bytes.ptx", "no PTX"), (".", "cannot read")):
        assert cli.main(["simulate", name, "--grid", "1"]) == 2
        assert message in capsys.readouterr().err


def test_later_chips_run_what_is_for_earlier_ones(run: Run) -> None:
    for target, arch, code in (("sm_80", "sm_103a", 0), ("sm_100f", "sm_103a", 0), ("sm_103a", "sm_100a", 2)):
        given = ("--grid", "1", "--block", "1", "--arg", "zeros:u32:1", "--arch", arch)
        assert run(RACE, *given, target=target)[0] == code
    assert "NVIDIA B200" in run(RACE, "--grid", "1", "--block", "1", "--arg", "zeros:u32:1", target="sm_100a")[1]
