"""What computes an operation fastest on a chip, as `diptych tune` has measured it.

A file a chip, in the package and in the cache (what a user has measured comes first):

    {"chip": "NVIDIA H200", "versions": {...}, "measured": [
        {"operation": "linear", "sizes": [4096, 4096], "rows": 2048, "dtype": "bfloat16",
         "microseconds": {"cublas": 112.0, "quack 128x192 2x1 pingpong": 118.3}}, ...]}

Of rows that were not measured, those that were and are nearest, by their ratio, stand for them. Where nothing was
measured for an operation's sizes, host code has a usual choice.

A file says which chip and which versions of the libraries it is of. Another chip's is refused. Of other versions it is
used, because it says what is fast and not what is right, and a warning says so.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from optimized.compile.build import CompileError
from optimized.compile.kernel import Kernel
from optimized.compile.library import cache_directories
from optimized.device import Device, Tensor
from optimized.libraries import FLASH_ATTENTION, library_versions
from optimized.libraries import QUACK as QUACK_KERNELS

log = logging.getLogger(__name__)
CUBLAS, QUACK, TORCH = "cublas", "quack", "torch"  # how names of choices begin
# What picks another way to add up for another number of rows. Every other choice, once made, gives a row the same bits
# in any company.
NOT_INVARIANT = (CUBLAS, TORCH)
_LIBRARIES = ("torch", QUACK_KERNELS, FLASH_ATTENTION, "nvidia-cutlass-dsl")  # what decides how fast a choice is


@dataclass(frozen=True)
class Measured:
    """One operation, at one number of rows."""

    operation: str
    sizes: tuple[int, ...]  # of what is fixed for a model: [N, K] of a product, for one
    rows: int
    dtype: str
    microseconds: Mapping[str, float]  # by choice

    @property
    def subject(self) -> tuple[str, tuple[int, ...], str]:
        return self.operation, self.sizes, self.dtype

    @staticmethod
    def of_json(values: Mapping[str, Any]) -> Measured:
        """Errors: KeyError, TypeError, ValueError for what is no measurement."""
        times = {str(name): float(time) for name, time in values["microseconds"].items()}
        if not times or not all(0 < time < math.inf for time in times.values()):
            raise ValueError(f"{values['operation']}: there are no times, or some that are not positive numbers")
        rows, sizes = int(values["rows"]), tuple(int(size) for size in values["sizes"])
        if rows < 1:
            raise ValueError(f"{values['operation']}: it was measured for {rows} rows; there must be 1 or more")
        return Measured(str(values["operation"]), sizes, rows, str(values["dtype"]), times)


class Tuned:
    """The measurements of one chip."""

    def __init__(self, measured: Iterable[Measured]) -> None:
        """Of two of the same, the later one counts."""
        self.measured = {(*one.subject, one.rows): one for one in measured}
        self._ranked: dict[tuple[Any, ...], tuple[str, ...]] = {}

    @cached_property
    def _of_subject(self) -> dict[tuple[Any, ...], list[Measured]]:
        found: dict[tuple[Any, ...], list[Measured]] = {}
        for one in self.measured.values():
            found.setdefault(one.subject, []).append(one)
        return found

    def ranked(
        self, operation: str, sizes: tuple[int, ...], dtype: str, rows: int, *, invariant: bool = False
    ) -> tuple[str, ...]:
        """Choices, the fastest first; none where nothing was measured.

        invariant: those alone that give a row the same bits whatever other rows there are, in the order of how they do
        over all numbers of rows, so that the first is the same for each.
        """
        key = operation, sizes, dtype, 0 if invariant else rows
        if key not in self._ranked:
            candidates = self._of_subject.get(key[:3], [])
            order = _ranked_over_all(candidates) if invariant else _ranked_at(candidates, rows)
            self._ranked[key] = order
        return self._ranked[key]


def is_invariant(choice: str) -> bool:
    """Does it give a row the same bits whatever other rows there are?"""
    return not choice.startswith(NOT_INVARIANT)


def _ranked_at(candidates: Sequence[Measured], rows: int) -> tuple[str, ...]:
    if not candidates:
        return ()
    nearest = min(candidates, key=lambda one: (abs(math.log(one.rows / rows)), one.rows))
    return tuple(sorted(nearest.microseconds, key=nearest.microseconds.__getitem__))


def _ranked_over_all(candidates: Sequence[Measured]) -> tuple[str, ...]:
    """By the mean, over numbers of rows, of the logarithm of a choice's time over the best one's."""
    losses: dict[str, list[float]] = {}
    for one in candidates:
        times = {choice: time for choice, time in one.microseconds.items() if is_invariant(choice)}
        for choice, time in times.items():
            losses.setdefault(choice, []).append(math.log(time / min(times.values())))
    complete = {choice: sum(of) for choice, of in losses.items() if len(of) == len(candidates)}
    return tuple(sorted(complete, key=complete.__getitem__))


def file_name(chip: str) -> str:
    """Of a chip's name: "NVIDIA H200" is in h200.json."""
    return "-".join(chip.removeprefix("NVIDIA ").lower().split()) + ".json"


def packaged_directory() -> Path:
    return Path(__file__).parent


def user_directory() -> Path:
    """Errors: FileNotFoundError without a home."""
    return cache_directories()[0].parent / "tuned"


def installed_versions() -> dict[str, str]:
    """Of the libraries whose choices are measured; empty where one is not installed."""
    return library_versions(*_LIBRARIES)


def read(file: Path) -> tuple[list[Measured], dict[str, str]]:
    """(measurements, versions of the libraries that they are of). Nothing, if there is no file.

    Errors: ValueError for one that is something else, or another chip's; OSError for one that cannot be read.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        if file_name(values["chip"]) != file.name:
            raise ValueError(f"it is of the chip {values['chip']!r}, whose file is {file_name(values['chip'])}")
        versions = {str(name): str(version) for name, version in values["versions"].items()}
        return [Measured.of_json(one) for one in values["measured"]], versions
    except FileNotFoundError:
        return [], {}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{file} does not hold what `diptych tune` writes: {error!r}; remove it") from error


@cache
def tuned(chip: str) -> Tuned:
    """What this package holds of a chip, and before it what its user has measured. Errors: ValueError, see `read`."""
    name = file_name(chip)
    found = _in_use(packaged_directory() / name)
    try:
        found += _in_use(user_directory() / name)
    except OSError as error:  # no home, or one that cannot be read: as for compiled kernels, no reason not to serve
        log.warning("what `diptych tune` has measured here is not used: %s", error)
    return Tuned(found)


def _in_use(file: Path) -> list[Measured]:
    """Errors: ValueError, OSError."""
    measured, versions = read(file)
    now = {name: version for name, version in installed_versions().items() if version}  # what is not there is not run
    others = {name: was for name, was in versions.items() if was != now.get(name, was)}
    if others:
        were = ", ".join(f"{name} {was} (now {now[name]})" for name, was in others.items())
        log.warning("%s was measured with %s: `diptych tune` measures what is fast now", file, were)
    return measured


def tuned_for(device: Device, tensor: Tensor) -> Tuned:
    """Of the chip that holds a tensor; of the usual board of its architecture, where it is none of torch's."""
    if getattr(tensor, "is_cuda", False):
        return tuned(_name_of_gpu(tensor.device.index))
    return tuned(device.arch.chip)


def run_choice(
    device: Device, operation: str, choice: str, instead: Callable[[], str], kernel: Kernel, *tensors: Any
) -> None:
    """Launch a library's kernel. instead: another choice that could do it.

    Errors: RuntimeError, naming both, if the kernel does not compile, load or start here.
    """
    try:
        device.run(kernel, *tensors)
    except (CompileError, ImportError, OSError, RuntimeError) as error:
        raise RuntimeError(
            f"{operation}: {choice!r} failed: {error}; pass choice={instead()!r}, or have `diptych tune` find out, and "
            "keep, what works on this chip"
        ) from error


@cache
def _name_of_gpu(index: int) -> str:
    import torch

    return torch.cuda.get_device_name(index)
