"""The panels that can compute, by name. Loaded when asked for, so the engine imports no panel.

A panel is a function that makes a Runner, which the engine drives:

    build_runner(config, tensors, *, num_token_ids, max_model_len, num_kv_tokens, cache)

or a whole Core, which is served as it is (`makes_core`):

    build_core(config, tensors, decode, *, eos_token_ids, num_token_ids, max_model_len, cache)

`tensors` maps the names of reference.model.tensors to arrays, `decode(token_ids, skip_special_tokens)` gives the text
of ids, ids from `num_token_ids` up are padding that is never sampled, `num_kv_tokens` is the KV memory that was asked
for (None: as the panel sees fit), and `cache` is a folder for compiled code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.core.settings import EngineSettings
from engine.names import load_function
from reference.model.config import ModelConfig

AUTO = "auto"  # the optimized panel where it can compute the model, else the reference panel


@dataclass(frozen=True)
class Panel:
    """Where a panel's function is, and what it makes."""

    function: str  # "module:name"
    makes_core: bool = False
    refusal: str = ""  # "module:name" of what says, of a config, why it is not computed on this machine, or None
    settings: EngineSettings = field(default_factory=EngineSettings)  # where nothing else is asked for
    # Is it told the sizes of steps, as `max_rows` and `max_tokens`, and warmed up (`warm_up` of its Runner)?
    is_sized: bool = False

    def load(self) -> Callable[..., Any]:
        return load_function(self.function)


PANELS = {
    "reference": Panel("reference.model.paged_runner:build_runner"),
    "optimized": Panel(
        "optimized.model.build:build_runner",
        refusal="optimized.model.supported:refusal",
        settings=EngineSettings(max_num_seqs=256, max_num_batched_tokens=8192),
        is_sized=True,
    ),
    # Its kernels, on a chip that is simulated: to see what a GPU would answer.
    "simulated-h200": Panel("parity.simulated_panel:build_on_h200"),
    "simulated-b200": Panel("parity.simulated_panel:build_on_b200"),
    # The definition itself, each request alone: to audit, not to serve many.
    "specification": Panel("reference.serving.specification:build_core", makes_core=True),
}


class PanelError(ValueError):
    """A panel that is not there; the message lists those that are."""


def named(name: str) -> Panel:
    """Errors: PanelError."""
    if name not in PANELS:
        raise PanelError(f"unknown panel {name!r}; known are {', '.join(sorted([AUTO, *PANELS]))}")
    return PANELS[name]


def chosen(name: str, config: ModelConfig) -> tuple[str, str]:
    """Which panel computes a model where `name` is asked for, and why it is not the optimized one, if AUTO is.

    Errors: PanelError."""
    if name != AUTO:
        named(name)
        return name, ""
    reason = load_function(PANELS["optimized"].refusal)(config)
    return ("optimized", "") if reason is None else ("reference", reason)
