"""Every kind of name leads to its directory, and a name that leads nowhere says what would have."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.checkpoint import CheckpointError, open_checkpoint, resolve, resolve_model, shape_names
from reference.model.config import ModelConfig

SHAPES = ["0.6b", "1.7b", "14b", "235b-a22b", "30b-a3b", "32b", "4b", "8b"]


@pytest.mark.parametrize("name", ["dense", "moe"])
def test_built_in_models_are_found_from_anywhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    directory = resolve_model(name)
    assert directory.is_absolute() and directory.parent.name == "builtin"
    ModelConfig.from_file(directory / "config.json")


def test_a_directory_with_a_config_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "owner" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model(str(model)) == model
    assert resolve_model("owner/model") == Path("owner/model")  # and not the hub's
    assert resolve_model("~/owner/model") == model


def test_a_directory_without_a_config_is_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is no checkpoint directory: it has no config"):
        resolve_model(str(tmp_path))


def test_the_names_of_smollm2_and_the_hub_go_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    def report(what: str, done: int, total: int) -> None: ...

    monkeypatch.setattr(resolve, "smollm2_directory", lambda progress: Path("made") if progress is report else None)
    monkeypatch.setattr(resolve, "download", lambda repo_id, instead: Path("hub") / repo_id)
    assert resolve_model("smollm2", progress=report) == Path("made")
    assert resolve_model("Qwen/Qwen3-0.6B") == Path("hub/Qwen/Qwen3-0.6B")


@pytest.mark.parametrize("size", SHAPES)
def test_a_shape_has_no_weights_and_says_how_to_serve_it(size: str) -> None:
    assert f"qwen3-{size}" in shape_names()
    with pytest.raises(CheckpointError, match="a shape without weights: serve it with --load-format dummy"):
        resolve_model(f"Qwen3-{size}")


@pytest.mark.parametrize(
    "name", ["", "no-such-model", "./owner/model", "/owner/model", "a/b/c", "-x/y", "a b/c", "~no-such-user/m"]
)
def test_another_name_lists_what_would_be_right(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as raised:
        resolve_model(name)
    for right in ("dense, moe", "smollm2", "config.json", "Qwen/Qwen3-0.6B", *(f"qwen3-{size}" for size in SHAPES)):
        assert name == "" or right in str(raised.value)


def test_the_shapes_open_as_configs_but_not_as_checkpoints(tmp_path: Path) -> None:
    for name in shape_names():
        file = resolve.shape_file(name)
        assert file is not None
        (tmp_path / "config.json").write_text(file.read_text())
        with pytest.raises(CheckpointError, match="holds no weights"):
            open_checkpoint(tmp_path)
