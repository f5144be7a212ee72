"""A model is loaded by any of its names, and what cannot be loaded is told in one line."""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from rich.console import Console

from engine import panels
from engine.cli import main
from engine.commands.load import LoadedModel, add_model_options, load_model
from engine.core.settings import EngineSettings
from engine.usage import UsageError
from reference.model.paged_runner import build_runner
from reference.model.tensors import checkpoint_tensors
from reference.serving.request import Request, RequestOutput, SamplingParams


def load(*arguments: str, console: Console | None = None, warms_up: bool = False) -> LoadedModel:
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    return load_model(parser.parse_args(arguments), console or Console(file=io.StringIO()), warms_up=warms_up)


def test_what_is_loaded(obedient: list[str], model: Path) -> None:
    loaded = load(*obedient)
    assert (loaded.name, loaded.panel) == (str(model), "reference")
    assert loaded.core.max_model_len == 256
    assert loaded.num_parameters == sum(math.prod(spec.shape) for spec in checkpoint_tensors(loaded.config).values())
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("hé")) == "hé"
    served = loaded.served("other")
    assert (served.name, loaded.served().name) == ("other", str(model))
    assert not served.engine.alive


WARMED: list[tuple[int, int]] = []


def build_warm(*arguments: Any, max_rows: int, max_tokens: int, **limits: Any) -> Any:
    runner: Any = build_runner(*arguments, **limits)
    sizes = max_rows, max_tokens

    def warm_up(max_rows: int, max_tokens: int, told: Callable[[int, int], None]) -> None:
        told(1, 2)
        WARMED.append((max_rows, max_tokens))
        assert sizes == WARMED[-1]

    runner.warm_up = warm_up
    return runner


def test_a_panel_that_warms_up_is_warm_when_it_is_loaded(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EngineSettings(max_num_seqs=12, max_num_batched_tokens=100)
    panel = panels.Panel(f"{__name__}:build_warm", settings=settings, is_sized=True)
    monkeypatch.setitem(panels.PANELS, "reference", panel)
    assert "warm-up" not in load(str(model), "--load-format", "dummy").seconds and WARMED == [], "for one answer"
    loaded = load(str(model), "--load-format", "dummy", warms_up=True)
    assert WARMED == [(12, 100)] and set(loaded.seconds) == {"weights", "warm-up"}
    load(str(model), "--load-format", "dummy", "--max-num-seqs", "3", "--panel", "reference", warms_up=True)
    assert WARMED[1:] == [(3, 100)]


def test_a_shorter_context(obedient: list[str]) -> None:
    assert load(*obedient, "--max-model-len", "32").core.max_model_len == 32
    for wrong in ("0", "1", "257", "-5"):
        with pytest.raises(UsageError, match=r"--max-model-len is -?\d+; it must lie in \[2, 256\]"):
            load(*obedient, "--max-model-len", wrong)


def test_the_progress_bar_is_for_terminals(obedient: list[str]) -> None:
    pipe, terminal = io.StringIO(), io.StringIO()
    load(*obedient, console=Console(file=pipe))
    load(*obedient, console=Console(file=terminal, force_terminal=True, width=200))
    assert pipe.getvalue() == ""
    assert "loading" in terminal.getvalue()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-model"], "there is no model 'no-such-model'"),
        (["/no/such/directory"], "there is no model '/no/such/directory'"),
        (["qwen3-8b"], "--load-format dummy"),
        (["no-such-model", "--load-format", "dummy"], "no-such-model"),
        (["dense", "--panel", "optimized"], "the optimized panel computes "),
        (["dense", "--panel", "fast"], "unknown panel 'fast'; known are auto, optimized, reference"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "chat", "generate"])
def test_what_cannot_be_loaded_is_one_line(
    command: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"serve": ["--port", "0"], "generate": ["--prompt", "a"]}.get(command, [])
    assert main([command, *arguments, *options]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert message in told.err
    assert told.err.startswith("diptych: ") and told.err.count("\n") == 1


def test_a_checkpoint_that_is_broken_is_one_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text((model / "config.json").read_text())
    assert main(["generate", str(tmp_path), "--prompt", "a"]) == 2
    assert "holds no weights" in capsys.readouterr().err
    (tmp_path / "config.json").write_text("{")
    assert main(["generate", str(tmp_path), "--prompt", "a"]) == 2
    assert "is not JSON" in capsys.readouterr().err
    with pytest.raises(UsageError):
        main(["generate", str(tmp_path), "--prompt", "a", "--debug"])


def test_a_hub_that_is_offline_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["generate", "nobody/nothing", "--prompt", "a"]) == 2
    told = capsys.readouterr().err
    assert "nobody/nothing" in told
    assert told.count("\n") == 1


def test_the_reference_panel_loads_and_keeps_what_it_compiles(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIPTYCH_CACHE", str(tmp_path / "cache"))
    assert not panels.PANELS["reference"].makes_core
    before = jax.config.jax_compilation_cache_dir
    try:
        core = load(str(model), "--load-format", "dummy").core
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "cache" / "jax")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert core.max_model_len == 256
    core.add(Request("a", (1, 2, 3), SamplingParams(max_tokens=1)))
    outputs: list[RequestOutput] = []
    while core.has_work():
        outputs += core.step()
    assert [output.finish_reason for output in outputs] == ["length"]
