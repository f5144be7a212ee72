"""Checkpoints: finding one by name, opening it, and making up its weights."""

from engine.checkpoint.checkpoint import Checkpoint, open_checkpoint, with_progress
from engine.checkpoint.dummy import dummy_checkpoint
from engine.checkpoint.error import CheckpointError
from engine.checkpoint.generation import GenerationDefaults
from engine.checkpoint.resolve import resolve_model, shape_file, shape_names

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "GenerationDefaults",
    "dummy_checkpoint",
    "open_checkpoint",
    "resolve_model",
    "shape_file",
    "shape_names",
    "with_progress",
]
