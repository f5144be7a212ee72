"""Errors of the user, which commands tell in one line instead of a traceback."""

from __future__ import annotations


class UsageError(Exception):
    """Something the user can put right; the message says what."""
