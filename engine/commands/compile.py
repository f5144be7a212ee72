"""`diptych compile`: the kernels of a model, built ahead of time, on a machine that need not have a GPU."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from engine.cache import cache_directory
from engine.checkpoint import CheckpointError, resolve_model, shape_file
from engine.checkpoint.checkpoint import read_config
from engine.names import load_function
from engine.usage import UsageError
from reference.model.config import ConfigError, ModelConfig

MAX_TOKENS = 32768


def main(arguments: Sequence[str]) -> int:
    """Build, and say what was built. Errors: UsageError."""
    options = _parser().parse_args(arguments)
    try:
        build_all = load_function("optimized.compile.ahead:build_all")
        kernels_of = load_function("optimized.model.kernels:kernels_of")
        arch_named = load_function("optimized.compile.arch:arch_named")
    except ImportError as error:
        raise UsageError(f"compiling needs CuTeDSL ({error}); pip install 'diptych[compile]'") from error
    if options.sms is not None and options.sms < 1:
        raise UsageError(f"--sms is a number of multiprocessors, 1 or more; {options.sms} is none")
    console = Console(stderr=True)
    directory = options.out or cache_directory() / "kernels"
    try:
        archs = [arch_named(name) for name in dict.fromkeys(options.arch.split(","))]
        config = _config(options.model)
        kernels = [
            (kernel, arch)
            for arch in archs
            for kernel in kernels_of(config, arch, max_tokens=options.max_tokens, num_sms=options.sms)
        ]
        start = time.perf_counter()
        with _progress(console) as progress:
            task = progress.add_task(f"compiling {options.model}", total=len(kernels))

            def built(kernel: Any, arch: Any, artifact: Any) -> None:
                progress.update(task, advance=1, description=f"{type(kernel).__name__} for {arch.name}")

            build_all(kernels, directory, jobs=options.jobs, built=built)
    except (CheckpointError, ConfigError, ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    seconds = time.perf_counter() - start
    print(f"{len(kernels)} kernels for {', '.join(arch.name for arch in archs)} are in {directory} ({seconds:.1f} s)")
    if options.out is not None:
        print(f"to use them there: export DIPTYCH_KERNELS={directory}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("diptych compile", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="as for `diptych serve`, or a shape such as qwen3-8b")
    parser.add_argument("--arch", default="sm_90a,sm_100a,sm_103a", metavar="NAMES", help="(default %(default)s)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: the cache")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, metavar="N", help="of one step")
    parser.add_argument(
        "--sms", type=int, metavar="N", help="multiprocessors of the chip (default: as the architecture's usual board)"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    return parser


def _config(model: str) -> ModelConfig:
    return read_config(shape_file(model) or resolve_model(model) / "config.json", None)


def _progress(console: Console) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
