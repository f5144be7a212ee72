"""The twins, one file each: which configurations are tried, on what inputs, and what error is allowed."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from parity.twin import Twin


def names() -> list[str]:
    return sorted(module.name for module in iter_modules(__path__))


def twin_named(name: str) -> Twin:
    """Errors: ValueError that lists the twins there are."""
    if name not in names():
        raise ValueError(f"unknown twin {name!r}; known are {', '.join(names())}")
    return import_module(f"{__name__}.{name}").TWIN
