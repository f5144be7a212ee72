"""The text of both panels of a twin. Neither is imported, so no compiler is needed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from parity.twin import Twin

ROOT = Path(__file__).parents[2]
CASES, REFERENCE, OPTIMIZED = "parity.cases.", "reference.kernels", "optimized.kernels"


@dataclass(frozen=True)
class Source:
    """One file."""

    path: str  # relative to the root of the packages
    text: str


def sources(twin: Twin) -> tuple[Source, Source]:
    """The reference's file, and the optimized one."""
    reference, optimized = (function.partition(":")[0] for function in (twin.reference, twin.optimized))
    if reference.startswith(CASES):  # a few lines that hand arguments on: what is to be read is where they go
        reference = next(_references(_file(reference)), reference)
    if optimized.startswith(CASES):
        optimized = f"{OPTIMIZED}.{twin.name}"
    return _source(reference), _source(optimized)


def _references(file: Path) -> Iterator[str]:
    """The modules of the reference panel's kernels that a file imports."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module == REFERENCE:
            yield f"{REFERENCE}.{node.names[0].name}"
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{REFERENCE}."):
            yield node.module


def _source(module: str) -> Source:
    file = _file(module)
    path = file.relative_to(ROOT) if file.is_relative_to(ROOT) else Path(file.name)
    return Source(path.as_posix(), file.read_text(encoding="utf-8"))


def _file(module: str) -> Path:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"there is no module {module}")
    return Path(spec.origin)
