"""Panels are found by name, and only when asked for."""

from __future__ import annotations

import inspect

import pytest

from engine import panels


@pytest.mark.parametrize("name", panels.PANELS)
def test_every_panel_builds_a_core(name: str) -> None:
    parameters = inspect.signature(panels.load(name)).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == ["config", "tensors", "decode"]
    by_name = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert by_name == {"eos_token_ids", "num_token_ids", "max_model_len", "cache"}


def test_an_unknown_panel_lists_the_known() -> None:
    with pytest.raises(panels.PanelError, match="unknown panel 'fast'; known are reference"):
        panels.load("fast")
