"""Panels are found by name, and only when asked for."""

from __future__ import annotations

import inspect
from unittest.mock import Mock

import pytest

from engine import panels
from engine.checkpoint.checkpoint import read_config
from engine.checkpoint.resolve import BUILTIN_DIRECTORY
from optimized.model import supported

LIMITS = {"num_token_ids", "max_model_len", "cache"}


@pytest.mark.parametrize("name", panels.PANELS)
def test_every_panel_has_the_signature_of_its_kind(name: str) -> None:
    panel = panels.named(name)
    parameters = inspect.signature(panel.load()).parameters.values()
    given = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    by_name = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    if panel.makes_core:
        assert (given, by_name) == (["config", "tensors", "decode"], LIMITS | {"eos_token_ids"})
    else:
        sizes = {"max_rows", "max_tokens"} if panel.is_sized else set()
        assert (given, by_name) == (["config", "tensors"], LIMITS | {"num_kv_tokens"} | sizes)


def test_an_unknown_panel_lists_the_known() -> None:
    with pytest.raises(
        panels.PanelError,
        match="unknown panel 'fast'; known are auto, optimized, reference, simulated-b200, simulated-h200, spec",
    ):
        panels.named("fast")


@pytest.mark.parametrize(("reason", "panel"), [(None, "optimized"), ("there is no GPU", "reference")])
def test_the_optimized_panel_is_taken_where_it_can(
    reason: str | None, panel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supported, "refusal", lambda config: reason)
    config = read_config(BUILTIN_DIRECTORY / "dense" / "config.json", None)
    assert panels.chosen(panels.AUTO, config) == (panel, reason or "")
    assert panels.chosen("reference", config) == ("reference", "")
    with pytest.raises(panels.PanelError):
        panels.chosen("fast", config)


def test_why_it_cannot_is_told_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(BUILTIN_DIRECTORY / "dense" / "config.json", None)
    monkeypatch.setattr(supported, "CDLL", Mock(side_effect=OSError))
    assert supported.refusal(config) == "this machine has no NVIDIA driver"
    monkeypatch.setattr(supported, "CDLL", Mock())
    monkeypatch.setattr(supported, "find_spec", lambda name: None)
    assert supported.refusal(config) == (
        "torch and cutlass and tvm_ffi cannot be imported: pip install 'diptych[gpu]' brings the optimized panel"
    )
