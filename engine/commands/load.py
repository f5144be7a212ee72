"""From the name of a model to a Core that runs it: what every command that runs a model does first."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from engine import panels
from engine.api.served import ServedModel
from engine.cache import cache_directory
from engine.chat_template import ChatTemplate
from engine.checkpoint import (
    Checkpoint,
    CheckpointError,
    dummy_checkpoint,
    open_checkpoint,
    resolve_model,
    shape_file,
    shape_names,
    with_progress,
)
from engine.core.engine import Engine
from engine.core.settings import EngineSettings
from engine.detokenize import detokenizers
from engine.grammar import GrammarCompiler
from engine.loop import AsyncEngine
from engine.metrics import Metrics
from engine.tokenizer import Tokenizer
from engine.usage import UsageError
from reference.model.config import ConfigError, ModelConfig
from reference.model.tensors import checkpoint_tensors
from reference.serving.request import Core
from reference.serving.runner import Refused


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory, and the text side of it."""

    name: str  # as it was asked for
    panel: str
    panel_reason: str  # why it is not the optimized one; empty where that was not asked
    seconds: Mapping[str, float]  # of what it took to load: "weights", and "warm-up" where there was one
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    template: ChatTemplate | None
    core: Core

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    @property
    def num_parameters(self) -> int:
        return sum(math.prod(spec.shape) for spec in checkpoint_tensors(self.config).values())

    def served(self, name: str | None = None) -> ServedModel:
        """The model behind an engine that has not started, under a name (default: the one it was asked for by)."""
        name = name or self.name
        metrics = Metrics(name)
        if isinstance(self.core, Engine):
            self.core.observer = metrics
            counts = getattr(self.core.runner, "counts", None)  # few runners count anything
            if counts is not None:
                metrics.add_counts(counts)
        engine = AsyncEngine(self.core, metrics)
        defaults = self.checkpoint.generation
        num_token_ids = _num_token_ids(self.tokenizer, self.config)
        grammars = GrammarCompiler(self.tokenizer, defaults.eos_token_ids, num_token_ids)
        return ServedModel(name, engine, self.tokenizer, self.template, defaults, grammars)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """The options that `load_model` reads, and --debug."""
    parser.add_argument(
        "model",
        nargs="?",
        default="dense",
        metavar="MODEL",
        help="dense, moe (built in), smollm2, a directory or a hub id (default %(default)s)",
    )
    parser.add_argument(
        "--panel",
        default=panels.AUTO,
        help=f"{', '.join(panels.PANELS)}; {panels.AUTO} (the default) is optimized on a GPU that can, else reference",
    )
    parser.add_argument(
        "--load-format",
        choices=("auto", "dummy"),
        default="auto",
        help=f"dummy: random weights, for a model or one of the shapes {', '.join(shape_names())}",
    )
    parser.add_argument("--max-model-len", type=int, metavar="N", help="tokens of prompt and output (default: all)")
    usual, fast = EngineSettings(), panels.PANELS["optimized"].settings
    parser.add_argument(
        "--max-num-seqs",
        type=int,
        metavar="N",
        help="samples that run at once; others wait "
        f"(default {usual.max_num_seqs}, on the optimized panel {fast.max_num_seqs})",
    )
    parser.add_argument(
        "--max-num-batched-tokens",
        type=int,
        metavar="N",
        help="tokens of one step; longer prompts are computed in chunks "
        f"(default {usual.max_num_batched_tokens}, on the optimized panel {fast.max_num_batched_tokens})",
    )
    parser.add_argument(
        "--kv-cache-tokens", type=int, metavar="N", help="capacity of the KV cache (default: by this machine's memory)"
    )
    parser.add_argument(
        "--prefix-cache", action=argparse.BooleanOptionalAction, default=True, help="reuse prompts that begin alike"
    )
    parser.add_argument(
        "--overlap", action=argparse.BooleanOptionalAction, default=True, help="prepare a step while one is computed"
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def load_model(options: argparse.Namespace, console: Console, *, seed: int = 0, warms_up: bool = False) -> LoadedModel:
    """Load what the options name, with a progress bar. seed: of random weights. warms_up: so that no request waits for
    a compiler; for one answer it takes longer than it saves. Errors: UsageError."""
    try:
        if options.panel != panels.AUTO:
            _settings(options, panels.named(options.panel))  # what cannot be is told before anything is loaded
        with _progress(console) as progress:
            checkpoint = _open(options.model, options.load_format, seed, progress)
            name, reason = panels.chosen(options.panel, checkpoint.config)
            panel = panels.named(name)
            settings = _settings(options, panel)
            max_model_len = _max_model_len(options.max_model_len, checkpoint.config)
            tokenizer = Tokenizer.from_directory(checkpoint.directory)
            template = ChatTemplate.from_directory(checkpoint.directory)
            task = progress.add_task(f"loading {options.model}", total=checkpoint.num_bytes)
            tensors = with_progress(checkpoint.tensors, lambda num_bytes: progress.advance(task, num_bytes))
            limits: dict[str, Any] = {
                "num_token_ids": _num_token_ids(tokenizer, checkpoint.config),
                "max_model_len": max_model_len,
            }
            ends = checkpoint.generation.eos_token_ids
            begun = time.monotonic()
            build = partial(panel.load(), checkpoint.config, tensors, cache=cache_directory(), **limits)
            core: Core
            if panel.makes_core:
                core = build(tokenizer.decode, eos_token_ids=ends)
                seconds = {"weights": time.monotonic() - begun}
            else:
                sizes = {"max_rows": settings.max_num_seqs, "max_tokens": settings.max_num_batched_tokens}
                runner = build(num_kv_tokens=options.kv_cache_tokens, **sizes if panel.is_sized else {})
                seconds = {"weights": time.monotonic() - begun}
                if panel.is_sized and warms_up:
                    seconds["warm-up"] = _warm_up(runner, settings, progress)
                core = Engine(runner, detokenizers(tokenizer), eos_token_ids=ends, settings=settings, **limits)
    except (CheckpointError, ConfigError, panels.PanelError, Refused, OSError) as error:
        raise UsageError(str(error)) from error
    return LoadedModel(options.model, name, reason, seconds, checkpoint, tokenizer, template, core)


def _warm_up(runner: Any, settings: EngineSettings, progress: Progress) -> float:
    """Seconds that it took."""
    begun = time.monotonic()
    task = progress.add_task("compiling and capturing", total=None)

    def told(done: int, total: int) -> None:
        progress.update(task, completed=done, total=total)

    runner.warm_up(settings.max_num_seqs, settings.max_num_batched_tokens, told)
    return time.monotonic() - begun


def _open(name: str, load_format: str, seed: int, progress: Progress) -> Checkpoint:
    if load_format == "dummy":
        return dummy_checkpoint(name if shape_file(name) else resolve_model(name), seed)
    task = progress.add_task("finding the model", total=None, visible=False)

    def report(what: str, done: int, total: int) -> None:
        progress.update(task, description=what, completed=done, total=total, visible=done < total)

    return open_checkpoint(resolve_model(name, progress=report))


def _num_token_ids(tokenizer: Tokenizer, config: ModelConfig) -> int:
    """Ids that may be sampled: a tokenizer may have more tokens than the embedding has rows, or fewer."""
    return min(tokenizer.num_token_ids, config.vocab_size)


def _max_model_len(asked: int | None, config: ModelConfig) -> int:
    trained = config.max_position_embeddings
    if asked is None:
        return trained
    if not 2 <= asked <= trained:
        raise UsageError(f"--max-model-len is {asked}; it must lie in [2, {trained}], the positions this model has")
    return asked


def _settings(options: argparse.Namespace, panel: panels.Panel) -> EngineSettings:
    if options.kv_cache_tokens is not None and options.kv_cache_tokens < 2:
        raise UsageError(f"--kv-cache-tokens is {options.kv_cache_tokens}; it must be at least 2")
    try:
        sizes = {name: getattr(options, name) for name in ("max_num_seqs", "max_num_batched_tokens")}
        given = {name: size for name, size in sizes.items() if size is not None}
        return replace(panel.settings, **given, prefix_cache=options.prefix_cache, overlap=options.overlap)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _progress(console: Console) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
