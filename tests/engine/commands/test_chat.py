"""`diptych chat` keeps the conversation, from a pipe and in a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.cli import main
from tests.engine.commands.conftest import OBEDIENT

ROOT = Path(__file__).parents[3]

Talk = Callable[..., list[str]]


@pytest.fixture
def talk(obedient: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Talk:
    def talk(text: str, *options: str) -> list[str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert main(["chat", *obedient, "--temperature", "0", *options]) == 0
        told = capsys.readouterr()
        assert told.err == ""
        return told.out.splitlines()

    return talk


def test_a_line_is_a_turn(talk: Talk) -> None:
    assert talk("say:One#\n/reset\n\nsay:Two 😀#") == ["One", "Two 😀"]


def test_what_was_said_is_remembered_until_reset(talk: Talk) -> None:
    # The model obeys the first order in its prompt, so the second is obeyed only if the first is forgotten.
    assert talk("say:One#\nsay:Two#\n") == ["One", "One"]
    assert talk("say:One#\n/reset\nsay:Two#\n/exit\nsay:Three#\n") == ["One", "Two"]


def test_system_stays(talk: Talk) -> None:
    assert talk("hello\n/reset\nhello\n", "--system", "say:Yes#") == ["Yes", "Yes"]


def test_length_and_thinking(talk: Talk) -> None:
    assert talk("say:abcdef#\n", "--max-tokens", "3") == ["abc"]
    assert talk("say:ab#\n", "--no-thinking") == talk("say:ab#\n", "--thinking") == ["ab"]


def test_a_thought_is_no_part_of_what_is_said(
    obedient: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a message with one goes back to the model, or the second line would have no answer."""
    monkeypatch.setattr("sys.stdin", io.StringIO("say:<think>[b]Why?</think>So.#\nand?\n"))
    assert main(["chat", *obedient, "--temperature", "0"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("So.\n" * 2, "[b]Why?\n\n" * 2)


def test_a_thought_is_dim_on_a_terminal(
    obedient: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    prompt = "say:<think>\nWhy?\n</think>\n\nSo.#"
    assert main(["generate", *obedient, "--chat", "--prompt", prompt, "--temperature", "0"]) == 0
    told = capsys.readouterr()
    assert told.out == "So.\n"
    assert "\x1b[2m" in told.err and re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told.err).endswith("Why?\n\n")


def test_an_error_in_a_pipe_ends_it(
    obedient: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("say:One#\n" + "a" * 300 + "\n/reset\nsay:Two#\n"))
    assert main(["chat", *obedient]) == 2
    told = capsys.readouterr()
    assert told.out == "One\n"
    assert "tokens and the context is 256" in told.err


class Terminal:
    """`diptych chat` on a terminal of its own."""

    def __init__(self, arguments: list[str]) -> None:
        self._ours, theirs = pty.openpty()
        program = (
            "import fcntl, sys, termios; from engine import panels; from engine.cli import main\n"
            "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"  # so that Ctrl-C is a signal
            f"panels.PANELS['reference'] = panels.Panel({OBEDIENT!r}, makes_core=True)\n"
            f"sys.exit(main({['chat', *arguments]!r}))"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "dumb"},
            start_new_session=True,
        )
        os.close(theirs)
        self._seen = ""

    def until(self, text: str) -> str:
        """What is shown up to and with a text."""
        deadline = time.monotonic() + 15
        while text not in self._seen:
            assert time.monotonic() < deadline, f"{text!r} is not in {self._seen!r}"
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self._seen += os.read(self._ours, 4096).decode(errors="replace")
                except OSError:  # the other end is closed
                    break
        before, found, self._seen = self._seen.partition(text)
        assert found, f"it ended after {before!r}"
        return before + found

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


def test_in_a_terminal(model: Path) -> None:
    terminal = Terminal([str(model), "--load-format", "dummy"])
    try:
        assert "Ctrl-D ends it" in terminal.until("> ")
        terminal.type("say:Hello#\n")
        terminal.until("#")
        assert "Hello" in terminal.until("> ")
        terminal.type("a" * 300 + "\n")
        assert "not answered: the prompt has" in terminal.until("\n> ")
        terminal.type("/reset\n")
        terminal.until("> ")
        terminal.type("say:" + "x" * 90 + "#slow!\n")
        terminal.until("#slow!")
        terminal.until("xxxx")
        terminal.type("\x03")
        assert "not answered: stopped" in terminal.until("\n> ")
        terminal.type("say:Again#\n")
        terminal.until("#")
        assert "Again" in terminal.until("> ")
        terminal.type("\x04")
        assert terminal.process.wait(10) == 0
    finally:
        terminal.close()
