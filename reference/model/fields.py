"""Reading the fields of a parsed `config.json`. Declarations only: no arithmetic, no JAX.

A field that is null counts as missing. Every reader raises ConfigError for a value of another kind than it reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class ConfigError(ValueError):
    """A `config.json` that cannot be served; the message names the field, its value and what would be right."""


def missing(raw: Mapping[str, Any], name: str) -> bool:
    return raw.get(name) is None


def size(raw: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = default if missing(raw, name) else raw[name]
    if value is None:
        raise ConfigError(f"{name} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}; expected a positive integer")
    return value


def count(raw: Mapping[str, Any], name: str, default: int) -> int:
    """Like a size, but 0 is one too."""
    return 0 if raw.get(name) == 0 else default if missing(raw, name) else size(raw, name)


def flag(raw: Mapping[str, Any], name: str) -> bool:
    value = False if missing(raw, name) else raw[name]
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; expected true or false")
    return value


def number(raw: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = default if missing(raw, name) else raw[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"{name} is {value!r}; expected a positive number")
    return float(value)
