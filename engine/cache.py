"""Where Diptych keeps what it can make again: converted checkpoints, compiled code."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """$DIPTYCH_CACHE, or else ~/.cache/diptych. It may not exist yet."""
    return Path(os.environ.get("DIPTYCH_CACHE") or "~/.cache/diptych").expanduser()
