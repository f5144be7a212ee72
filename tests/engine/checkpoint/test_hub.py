"""A hub id becomes a directory, and every way in which a hub can fail becomes a sentence, soon."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoint import CheckpointError, hub
from tests.engine.checkpoint.fake_hub import FakeHub, running

FILES = {
    "config.json": b'{"model_type": "qwen3"}',
    "model.safetensors": b"weights",
    "chat_template.jinja": b"{{ messages }}",
    "pytorch_model.bin": b"not wanted",
}


NOWHERE = "http://127.0.0.1:9"


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    fake = FakeHub("owner/model", FILES)
    with running(fake) as url:
        point_at(url, monkeypatch)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(hub, "TIMEOUT_SECONDS", 0.5)
        yield fake


def refusal() -> str:
    start = time.perf_counter()
    with pytest.raises(CheckpointError) as raised:
        hub.download("owner/model", "name another")
    assert time.perf_counter() - start < 10
    return str(raised.value)


def test_downloads_what_is_needed_and_no_more(fake: FakeHub) -> None:
    directory = hub.download("owner/model", "name another")
    wanted = FILES.keys() - {"pytorch_model.bin"}
    assert {file.name for file in directory.iterdir()} == wanted == set(fake.served)
    assert all((directory / name).read_bytes() == FILES[name] for name in wanted)


def test_an_unknown_model_says_so(fake: FakeHub) -> None:
    fake.status, fake.error_code = 404, "RepoNotFound"
    assert "no directory owner/model here, and no model owner/model on the hub" in refusal()
    assert refusal().endswith("HF_TOKEN: name another")


def test_a_gated_model_says_how_to_get_it(fake: FakeHub) -> None:
    fake.status, fake.error_code = 403, "GatedRepo"
    assert "owner/model is gated: accept its conditions" in refusal() and "HF_TOKEN" in refusal()


def test_a_hub_that_says_nothing_is_not_waited_for(fake: FakeHub) -> None:
    fake.silent = True
    assert "the hub did not give it (" in refusal() and "Timeout" in refusal() and "name another" in refusal()


def test_a_hub_that_is_not_there_says_so(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at(NOWHERE, monkeypatch)
    assert "it is not in the hub's cache, and the hub did not give it (ConnectError" in refusal()


@pytest.mark.parametrize("failure", ["absent", "silent", "offline"])
def test_a_cached_model_is_served_without_the_hub(
    fake: FakeHub, failure: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = hub.download("owner/model", "name another")
    if failure == "absent":
        point_at(NOWHERE, monkeypatch)
    elif failure == "silent":
        fake.silent = True
    else:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with caplog.at_level(logging.WARNING, "engine"):
        assert hub.download("owner/model", "name another") == directory
    (record,) = [record for record in caplog.records if record.name.startswith("engine")]
    assert f"using the cached {directory}" in record.getMessage()


def test_a_model_cached_in_part_is_not_served(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = hub.download("owner/model", "name another")
    (directory / "model.safetensors").unlink()
    point_at(NOWHERE, monkeypatch)
    assert "is not in the hub's cache" in refusal()
