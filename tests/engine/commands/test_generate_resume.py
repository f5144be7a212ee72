"""`diptych generate --input` goes on where it was interrupted, and only if the output is that of its input."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import panels
from engine.batch import files as batch_files
from engine.batch.files import AnswerFile
from tests.engine.commands.files import Files, say, text

ROOT = Path(__file__).parents[3]
COUNTING = "tests.engine.history_core:build_core"
BABBLE = {"prompt": "babble", "max_tokens": 3}
LINES: list[dict[str, Any] | str] = [
    BABBLE,
    say("é\u2028😀"),
    "not JSON",
    "",
    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": BABBLE},
    {"custom_id": "b", "method": "PUT", "url": "/v1/completions", "body": BABBLE},
    {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2},
    BABBLE,
]


class Killed(BaseException):
    """Nothing catches it, and what was written stays as it is."""


def without_names(answers: bytes) -> bytes:
    """Without what differs from one call to the next."""
    answers = re.sub(rb'"id":"(cmpl|chatcmpl)-[0-9a-f]{32}"', b'"id":""', answers)
    return re.sub(rb'"created":[0-9]+', b'"created":0', answers)


def killed_after(num_bytes: int, files: Files, *options: str) -> bool:
    """A run that is killed once it has written so much. False if it comes to its end before."""
    written = 0
    write = AnswerFile.write

    def dying(self: AnswerFile, line: bytes) -> None:
        nonlocal written
        if written + len(line) > num_bytes:
            write(self, line[: num_bytes - written])
            raise Killed
        write(self, line)
        written += len(line)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AnswerFile, "write", dying)
        try:
            files.run(*options)
        except Killed:
            return True
    return False


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 1500), min_size=1, max_size=3), st.integers(1, 6))
def test_a_run_that_is_killed_anywhere_ends_as_if_it_were_not(files: Files, kills: list[int], concurrency: int) -> None:
    files.write(*LINES)
    options = "--seed", "1", "--concurrency", str(concurrency)
    assert files.run("--overwrite", *options) == 1
    whole = files.output.read_bytes()
    assert whole.count(b"\n") == len(LINES) - 1
    files.output.unlink()
    for num_bytes in kills:
        left = files.output.read_bytes() if files.output.exists() else b""
        complete = left[: left.rfind(b"\n") + 1]
        killed_after(num_bytes, files, *options)
        assert files.output.read_bytes().startswith(complete)  # what was answered is not asked for again
    assert files.run(*options) == 1
    assert without_names(files.output.read_bytes()) == without_names(whole)


def test_a_process_that_is_interrupted_or_killed(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path, [str(model), "--load-format", "dummy"])
    files.write(*({"prompt": f"line {number}", "max_tokens": 5} for number in range(120)))
    program = (
        f"import sys; from engine import panels; from engine.cli import main\n"
        f"panels.PANELS['reference'] = panels.Panel({COUNTING!r}, makes_core=True)\n"
        f"sys.exit(main({files.command('--concurrency', '4')!r}))"
    )
    size = 0
    for sent, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        while not files.output.exists() or files.output.stat().st_size < size + 1000:
            assert process.poll() is None, process.communicate()
            time.sleep(0.002)
        process.send_signal(sent)
        _, told = process.communicate(timeout=20)
        assert process.returncode == code
        if sent == signal.SIGINT:
            assert "the same command, without --overwrite, goes on after them" in " ".join(told.split())
        assert size < files.output.stat().st_size
        size = files.output.stat().st_size
    assert len(files.output.read_bytes().splitlines()) < 120, "the last was killed too late to test anything"
    monkeypatch.setitem(panels.PANELS, "reference", panels.Panel(COUNTING, makes_core=True))
    assert files.run() == 0
    answers = files.answers()
    assert [answer["index"] for answer in answers] == list(range(120))
    assert {answer["response"]["usage"]["completion_tokens"] for answer in answers} == {5}


def test_what_is_complete_needs_no_model(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(say("one"), "wrong", "")
    assert files.run() == 1
    before = files.output.read_bytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(panels.PANELS, "reference")
        capsys.readouterr()
        assert files.run() == 1  # for what the output holds already
    assert files.output.read_bytes() == before
    assert capsys.readouterr().err == f"{files.output} holds 2 answers, which are kept\n2 lines, 1 failed\n"


@pytest.mark.parametrize(
    "tail",
    [
        b'{"id":"batch_req_1_',
        b"{",
        b'{"id":"batch_req_1_01234567_0123456789abcdef","index":1,"response":{}}',  # only the line's end is missing
        bytes(100),
        b'{"id":"batch_req_' + bytes(50),
        bytes(10) + b'"}}\n{"id":"batch_req_2_',
    ],
    ids=["torn", "one byte", "no line's end", "zeros", "torn, zeros", "zeros before more"],
)
def test_a_torn_end_is_cut_off(files: Files, tail: bytes) -> None:
    files.write(say("one"), say("two"))
    files.run()
    first = files.output.read_bytes().splitlines(keepends=True)[0]
    files.output.write_bytes(first + tail)
    assert files.run() == 0
    assert [text(answer) for answer in files.answers()] == ["one", "two"]
    assert files.output.read_bytes().startswith(first)


def test_zeros_alone_are_a_torn_end(files: Files) -> None:
    files.write(say("one"))
    files.output.write_bytes(bytes(1000))
    assert files.run() == 0
    assert [text(answer) for answer in files.answers()] == ["one"]


@pytest.mark.parametrize(
    ("content", "after"),
    [
        (b"a text", False),
        (b"a text", True),
        (b"a text\n", True),
        (b"SQLite format 3\0\x10\0", False),
        (b"SQLite format 3\0\x10\0", True),
        (b"\0\0\0 ftypisom", False),
        (b'{"id": "a"}\n', True),
        (b'{"id":"batch_req_\n', True),  # torn, but not by an interruption of this command
        (b"[]\n", False),
        (b"1\n", False),
    ],
)
def test_a_file_of_another_kind_is_refused_and_left_alone(
    files: Files, capsys: pytest.CaptureFixture[str], content: bytes, after: bool
) -> None:
    """As it is, or after an answer of this command."""
    files.write(say("one"), say("two"))
    if after:
        files.run()
        content = files.output.read_bytes() + content
    files.output.write_bytes(content)
    capsys.readouterr()
    assert files.run() == 2
    told = capsys.readouterr().err
    assert "is no answer that this command wrote; name another --output, or start over with --overwrite" in told
    assert told.count("\n") == 1
    assert files.output.read_bytes() == content


INPUT: list[dict[str, Any] | str] = [say("one"), say("two"), say("three")]


@pytest.mark.parametrize(
    ("changed", "index"),
    [
        ([INPUT[0], say("2"), INPUT[2]], 1),
        ([INPUT[1], INPUT[0], INPUT[2]], 0),
        (INPUT[1:], 0),
        (INPUT[:1], 1),
        (["", *INPUT], 0),
        ([], 0),
        ([INPUT[0], json.dumps(INPUT[1]) + " ", INPUT[2]], 1),
    ],
    ids=["another", "other order", "less before", "less after", "one more before", "none", "a space"],
)
def test_a_changed_input_is_refused(
    files: Files, capsys: pytest.CaptureFixture[str], changed: list[dict[str, Any] | str], index: int
) -> None:
    files.write(*INPUT)
    assert files.run() == 0
    answers = files.output.read_bytes()
    files.output.write_bytes(b"".join(answers.splitlines(keepends=True)[:2]))
    left = files.output.read_bytes()
    files.write(*changed)
    capsys.readouterr()
    assert files.run() == 2
    assert f"the input has changed: {files.output} answers another line {index}" in capsys.readouterr().err
    assert files.output.read_bytes() == left
    files.write(*INPUT)  # and with the old one it goes on
    assert files.run() == 0
    assert without_names(files.output.read_bytes()) == without_names(answers)


def test_what_is_changed_or_added_later_is_no_change(files: Files) -> None:
    files.write(*INPUT[:2])
    assert files.run() == 0
    files.write(*INPUT[:2], say("four"))
    assert files.run() == 0
    assert [text(answer) for answer in files.answers()] == ["one", "two", "four"]


@pytest.mark.parametrize(
    "options",
    [["--max-tokens", "9"], ["--temperature", "0.5"], ["--seed", "1"], ["--max-model-len", "99"]],
    ids=lambda options: options[0],
)
def test_other_options_are_refused(files: Files, capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    files.write(*INPUT[:2])
    assert files.run() == 0
    before = files.output.read_bytes()
    files.write(*INPUT)
    assert files.run(*options) == 2
    told = capsys.readouterr().err
    assert "was begun with other options: one of MODEL, " in told
    assert options[0] in told
    assert files.output.read_bytes() == before
    assert files.run("--concurrency", "1", "--max-num-seqs", "1", "--no-overlap") == 0  # these change no answer
    assert files.run("--overwrite", *options) == 0
    assert len(files.answers()) == 3


def test_two_runs_do_not_write_to_one_file(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(say("one"))
    with files.output.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert files.run() == 2
        assert "another run writes to" in capsys.readouterr().err
    assert files.run() == 0


def test_what_is_written_is_synced(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []

    def sync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", sync)
    files.write(*INPUT)
    files.output.touch()
    assert files.run() == 0
    size = files.output.stat().st_size
    assert synced[-1] == size
    monkeypatch.setattr(batch_files, "SYNC_SECONDS", 0.0)
    synced.clear()
    assert files.run("--overwrite") == 0
    assert len(set(synced)) == 3  # after every line
