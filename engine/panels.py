"""The panels that can compute, by name. Loaded when asked for, so the engine imports no panel.

A panel is a function that makes a Core:

    build_core(config, tensors, decode, *, eos_token_ids, num_token_ids, max_model_len, cache)

`tensors` maps the names of reference.model.tensors to arrays, `decode(token_ids, skip_special_tokens)` gives the text
of ids, ids from `num_token_ids` up are padding that is never sampled, and `cache` is a folder for compiled code.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.names import load_function
from reference.serving.request import Core

PANELS = {"reference": "reference.serving.specification:build_core"}


class PanelError(ValueError):
    """A panel that is not there; the message lists those that are."""


def load(name: str) -> Callable[..., Core]:
    """The `build_core` of that panel. Errors: PanelError."""
    if name not in PANELS:
        raise PanelError(f"unknown panel {name!r}; known are {', '.join(PANELS)}")
    build_core: Callable[..., Core] = load_function(PANELS[name])
    return build_core
