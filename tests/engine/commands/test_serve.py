"""`diptych serve` shows what it serves, says once that it is ready, answers, and stops gracefully."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from engine.cli import main

ROOT = Path(__file__).parents[3]
COUNTING = "tests.engine.history_core:build_core"


@contextmanager
def server(*arguments: str, panel: str | None = COUNTING) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process of its own, and what it shows until it is ready."""
    planted = "" if panel is None else f"panels.PANELS['reference'] = panels.Panel({panel!r}, makes_core=True)\n"
    program = (
        f"import sys; from engine import panels; from engine.cli import main\n{planted}"
        f"sys.exit(main({['serve', '--load-format', 'dummy', '--port', '0', *arguments]!r}))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        shown = ""
        for line in process.stderr:
            shown += line
            if line.startswith("curl"):
                break
        yield process, shown
    finally:
        process.kill()
        process.communicate()


def address(shown: str) -> str:
    found = re.search(r"ready at (http://\S+)/v1", shown)
    assert found, shown
    return found[1]


def test_the_screen_the_ready_line_and_the_example(model: Path) -> None:
    with server(str(model), "--served-model-name", "obedient", "--max-model-len", "99") as (process, shown):
        for fact in ("obedient", "0.0 M", "bfloat16", "reference", "99 tokens", address(shown)):
            assert fact in shown, fact
        assert shown.count("ready") == 1
        [curl] = [line for line in shown.splitlines() if line.startswith("curl")]
        words = shlex.split(curl)  # on one line, as a shell reads it
        name, value = words[3].split(": ")
        answer = httpx.post(words[1], content=words[-1], headers={name: value}, timeout=10)
        assert answer.json()["model"] == "obedient", answer.text
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
        assert (process.returncode, out, err) == (0, "", "stopped\n")


def test_an_orchestrators_signal_lets_an_answer_finish(model: Path) -> None:
    with server(str(model)) as (process, shown):
        asked = {"prompt": "a", "max_tokens": 100}  # a second
        answers: list[httpx.Response] = []
        client = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{address(shown)}/v1/completions", json=asked, timeout=10))
        )
        client.start()
        time.sleep(0.3)
        assert client.is_alive(), "the answer came too early to test anything"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        client.join()
        assert answers[0].json()["usage"]["completion_tokens"] == 100


def test_a_port_that_is_taken(obedient: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", *obedient, "--port", str(port)]) == 2
    told = capsys.readouterr().err
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in told
    assert told.count("\n") == 1


def test_a_host_that_is_none(obedient: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *obedient, "--host", "no.such.host.invalid"]) == 2
    told = capsys.readouterr().err
    assert "cannot listen on no.such.host.invalid:8000" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("port", ["65536", "-1", "http"])
def test_a_port_that_is_none(obedient: list[str], capsys: pytest.CaptureFixture[str], port: str) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", *obedient, "--port", port])
    assert left.value.code == 2
    assert f"{port!r} is no port" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["reference", "specification"])
def test_a_real_panel_serves(model: Path, name: str) -> None:
    """End to end."""
    with server(str(model), "--panel", name, panel=None) as (_, shown):
        asked = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "seed": 1, "logprobs": True}
        url = f"{address(shown)}/v1/chat/completions"
        first, second = (httpx.post(url, json=asked, timeout=60).json() for _ in range(2))
        assert first["choices"] == second["choices"]
        assert len(first["choices"][0]["logprobs"]["content"]) == first["usage"]["completion_tokens"]
        assert json.dumps(first)
