"""The command is quick, says what went wrong in one line, and gives the right exit code."""

from __future__ import annotations

import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine import cli
from engine.names import load_function
from engine.usage import UsageError
from engine.version import VERSION

ROOT = Path(__file__).parents[2]


def wrong(arguments: Sequence[str]) -> int:
    raise UsageError("that is\nwrong [bold]")


def buggy(arguments: Sequence[str]) -> int:
    raise ZeroDivisionError


def interrupted(arguments: Sequence[str]) -> int:
    raise KeyboardInterrupt


def fine(arguments: Sequence[str]) -> int:
    print(*arguments)
    return 0


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (wrong, buggy, interrupted, fine):
        monkeypatch.setitem(cli.COMMANDS, function.__name__, (f"{__name__}:{function.__name__}", "of a test"))


def seconds(program: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - begun


def test_help_is_quick() -> None:
    run = "from engine.cli import main; main(['--help'])"
    assert min(seconds(run) for _ in range(5)) - min(seconds("pass") for _ in range(5)) < 0.15


def test_help_imports_nothing_heavy() -> None:
    program = "import sys; from engine.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert "engine" in loaded
    assert not loaded & {"numpy", "pydantic", "starlette", "uvicorn", "rich", "asyncio", "tokenizers", "argparse"}


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in cli.COMMANDS)
    assert cli.main([]) == 2


@pytest.mark.parametrize("name", ["serve", "chat", "generate"])
def test_every_command_is_there_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(load_function(cli.COMMANDS[name][0]))
    with pytest.raises(SystemExit) as left:
        cli.main([name, "--help"])
    assert left.value.code == 0
    assert f"diptych {name}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"diptych {VERSION}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project.get("version", VERSION) == VERSION


@pytest.mark.parametrize(("arguments", "code"), [(["--version"], 0), (["serv"], 2)])
def test_as_a_module(arguments: list[str], code: int) -> None:
    done = subprocess.run([sys.executable, "-m", "engine", *arguments], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == code


def test_an_unknown_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["genrate"]) == 2
    assert capsys.readouterr() == ("", "diptych: unknown command 'genrate'; did you mean 'generate'?\n")
    assert cli.main(["xyzzy"]) == 2
    assert "known are serve, chat, generate" in capsys.readouterr().err


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fine", "a", "--b"]) == 0
    assert capsys.readouterr().out == "a --b\n"
    assert cli.main(["wrong"]) == 2
    assert capsys.readouterr() == ("", "diptych: that is wrong [bold]\n")
    with pytest.raises(UsageError):
        cli.main(["wrong", "--debug"])
    assert cli.main(["interrupted"]) == 130
    with pytest.raises(ZeroDivisionError):
        cli.main(["buggy"])


def test_an_option_that_is_not_there_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["generate", "--surprise"])
    assert left.value.code == 2
    assert "--surprise" in capsys.readouterr().err
