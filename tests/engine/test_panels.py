"""Panels are found by name, and only when asked for."""

from __future__ import annotations

import inspect

import pytest

from engine import panels

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
        assert (given, by_name) == (["config", "tensors"], LIMITS | {"num_kv_tokens"})


def test_an_unknown_panel_lists_the_known() -> None:
    with pytest.raises(
        panels.PanelError,
        match="unknown panel 'fast'; known are optimized, reference, simulated-b200, simulated-h200, specification",
    ):
        panels.named("fast")
