"""`diptych serve` under signals: once, what runs is finished; twice, nothing is. Never a traceback."""

from __future__ import annotations

import json
import signal
import socket
import threading
from pathlib import Path

import httpx
import pytest

from tests.engine.commands.test_serve import address, server
from tests.engine.history_core import LOSING


class StreamingClient(threading.Thread):
    """Asks for a stream; `begun` when its first event is there."""

    def __init__(self, url: str, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self._url, self._asked = url, {"prompt": "a", "max_tokens": max_tokens, "stream": True}
        self.begun = threading.Event()
        self.events: list[str] = []
        self.failure: httpx.HTTPError | None = None
        self.start()
        assert self.begun.wait(20)

    def run(self) -> None:
        try:
            with httpx.stream("POST", f"{self._url}/v1/completions", json=self._asked, timeout=30) as response:
                for line in response.iter_lines():
                    if line:
                        self.events.append(line.removeprefix("data: "))
                        self.begun.set()
        except httpx.HTTPError as error:
            self.failure = error


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_stream_is_finished_and_nobody_else_is_let_in(model: Path, sent: signal.Signals) -> None:
    with server(str(model)) as (process, shown):
        client = StreamingClient(address(shown), 100)  # a second
        process.send_signal(sent)
        assert process.stderr is not None
        assert process.stderr.readline() == "finishing what runs; Ctrl-C stops at once\n"
        with pytest.raises((httpx.NetworkError, httpx.RemoteProtocolError)):
            while True:  # the listener is closed a moment after the word
                late = httpx.post(f"{address(shown)}/v1/completions", json={"prompt": "a"}, timeout=20)
                assert (late.status_code, late.json()["error"]["code"]) == (503, "stopping")
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "", "stopped\n")
        client.join(10)
        assert client.failure is None
        assert client.events.pop() == "[DONE]"
        assert len(client.events) == 100


def test_a_lost_device_fails_what_runs_and_the_server_starts_anew_at_its_address(model: Path) -> None:
    with server(str(model)) as (process, shown):
        url = address(shown)
        client = StreamingClient(url, 250)
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": LOSING}, timeout=20)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "device_lost")
        assert int(answer.headers["Retry-After"]) > 0
        client.join(10)
        assert json.loads(client.events[-1])["error"]["code"] == "device_lost"
        # Who comes while it starts waits, and is served.
        late = httpx.post(f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 3}, timeout=60)
        assert late.status_code == 200, late.text
        assert process.stderr is not None and process.poll() is None
        told = ""
        while "curl" not in told:
            told += process.stderr.readline()
        assert "the engine cannot go on" in told and "DeviceLost: the GPU takes no more work" in told
        assert "the device was lost: starting anew" in told and address(told) == url
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_what_takes_longer_than_it_may_is_told(model: Path) -> None:
    with server(str(model), "--drain-seconds", "0.1") as (process, shown):
        client = StreamingClient(address(shown), 250)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out) == (0, "")
        assert err == "finishing what runs; Ctrl-C stops at once\nstopped\n"
        client.join(10)
        assert json.loads(client.events[-1])["error"]["code"] == "stopping"
        assert len(client.events) < 250


def test_twice_is_at_once(model: Path) -> None:
    with server(str(model)) as (process, shown):
        client = StreamingClient(address(shown), 250)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.readline().startswith("finishing what runs")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (130, "", "stopped at once\n")
        client.join(10)
        assert client.failure is not None


def test_a_client_that_sends_no_more_does_not_hold_up_the_end(model: Path) -> None:
    with server(str(model), "--drain-seconds", "0.1") as (process, shown):
        host, port = address(shown).removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20):
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, "", "stopped\n")
