"""Functions by name, imported when they are used: what keeps the command quick and the engine free of panels."""

from __future__ import annotations

import importlib
from typing import Any


def load_function(name: str) -> Any:
    """The function that "module:function" names. Errors: ImportError, AttributeError."""
    module, function = name.split(":")
    return getattr(importlib.import_module(module), function)
