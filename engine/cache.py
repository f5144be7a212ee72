"""Where Diptych keeps what it can make again: converted checkpoints, compiled code."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """$DIPTYCH_CACHE, or else ~/.cache/diptych. It may not exist yet. Errors: FileNotFoundError without a home."""
    directory = Path(os.environ.get("DIPTYCH_CACHE") or "~/.cache/diptych")
    try:
        return directory.expanduser()
    except RuntimeError:  # a user that is in no passwd file, as in some containers
        message = f"there is no home directory for the cache {directory}: set DIPTYCH_CACHE to a folder"
        raise FileNotFoundError(message) from None
