"""The one error of everything that is read from a checkpoint directory."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint that cannot be served, or cannot be found. The message names the file, where there is one the
    tensor, and what would be right."""
