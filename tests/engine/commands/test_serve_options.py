"""The options of `diptych serve` that guard it reach the server."""

from __future__ import annotations

import shlex
from pathlib import Path

import httpx
import pytest

from engine.cli import main
from engine.commands.serve import API_KEY_VARIABLE
from tests.engine.commands.test_serve import address, server


def test_options_reach_the_server(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "from-the-variable")  # which options replace
    limits = ["--max-requests", "3", "--max-body-bytes", "50", "--health-seconds", "5", "--drain-seconds", "1.5"]
    with server(str(model), "--served-model-name", "m", "--api-key", "one", "--api-key", "two", *limits) as (_, shown):
        [curl] = [line for line in shown.splitlines() if line.startswith("curl")]
        assert f"Authorization: Bearer ${API_KEY_VARIABLE}" in shlex.split(curl)
        assert "one" not in shlex.split(curl)
        with httpx.Client(base_url=address(shown), timeout=20) as client:
            assert client.get("/v1/models").status_code == 401
            variable = {"authorization": "Bearer from-the-variable"}
            assert client.get("/v1/models", headers=variable).status_code == 401
            assert client.get("/health?generate=1").status_code == 200
            assert 'diptych_generated_tokens_total{model="m"} 1.0' in client.get("/metrics").text
            for key in ("one", "two"):
                client.headers["authorization"] = f"Bearer {key}"
                assert client.get("/v1/models").status_code == 200
            assert client.post("/v1/completions", json={"prompt": "a", "n": 4}).status_code == 400
            assert client.post("/v1/completions", json={"prompt": "a" * 50}).status_code == 413
            assert client.post("/v1/completions", json={"prompt": "a", "n": 3}).status_code == 200


def test_the_variable_is_a_key_too(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "from-the-variable")
    with server(str(model)) as (_, shown), httpx.Client(base_url=address(shown), timeout=20) as client:
        assert client.get("/v1/models").status_code == 401
        client.headers["authorization"] = "Bearer from-the-variable"
        assert client.get("/v1/models").status_code == 200


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-requests", "0"),
        ("--max-requests", "-1"),
        ("--max-requests", "many"),
        ("--max-body-bytes", "1.5"),
        ("--health-seconds", "0"),
        ("--health-seconds", "nan"),
        ("--drain-seconds", "-1"),
        ("--drain-seconds", "1e300"),
        ("--drain-seconds", "soon"),
    ],
)
def test_a_number_that_is_none(
    obedient: list[str], capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", *obedient, f"{option}={value}"])
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert option in told
    assert f"{value!r} is not a" in told


@pytest.mark.parametrize("key", ["", "two words", "schlüssel", "line\n"])
def test_a_key_that_no_header_carries(obedient: list[str], capsys: pytest.CaptureFixture[str], key: str) -> None:
    assert main(["serve", *obedient, "--api-key", key]) == 2
    assert "an API key must be printable ASCII" in capsys.readouterr().err
