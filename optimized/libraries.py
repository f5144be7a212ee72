"""Libraries of kernels that operations stand on: quack-kernels and flash-attn-4, each at the version that is pinned.

Only their kernels are taken. Compiling, caching, loading and launching are this panel's own: a library's cache may hand
code for one architecture to another, because its keys do not name it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from types import ModuleType
from typing import Any

QUACK, FLASH_ATTENTION = "quack-kernels", "flash-attn-4"


def part_of_library(path: str) -> Any:
    """A module's attribute, "module:name", such as a kernel's class.

    Errors: ImportError where the library is not installed.
    """
    module, _, name = path.partition(":")
    try:
        with _triton(), _fingerprints(module), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of what they use of the compiler
            return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error}; pip install 'diptych[libraries]' brings what products of many rows and attention stand on"
        ) from error


def missing(*names: str) -> str | None:
    """In words, which of these distributions are not installed; None: all are."""
    absent = [name for name in names if not any(metadata.distributions(name=name))]
    return f"{' and '.join(absent)} cannot be found; pip install 'diptych[libraries]' brings it" if absent else None


@cache
def library_versions(*names: str) -> dict[str, str]:
    """Of distributions, for compile keys: what a kernel of a library compiles to depends on its version. Empty where
    one is not installed."""
    found = {name: next(iter(metadata.distributions(name=name)), None) for name in names}
    return {name: "" if one is None else one.version for name, one in found.items()}


@contextmanager
def _fingerprints(module: str) -> Iterator[None]:
    """quack keys its epilogues, while they are imported, by the source of all that they call, except for installed
    packages, which it knows by a folder named site-packages or dist-packages. In another folder, as `pip install
    --target` fills, it follows calls into the compiler and fails at what has no key. So until the import is done, all
    that is not quack's counts as installed. The keys are for its cache, of which nothing here is used.
    """
    if not module.startswith("quack.epilogue"):
        yield
        return
    identity = vars(import_module("quack.gemm_runtime.identity"))
    its_own = identity["_is_extern_function"]
    identity["_is_extern_function"] = lambda function: (function.__module__ or "").partition(".")[0] != "quack"
    try:
        yield
    finally:
        identity["_is_extern_function"] = its_own


@contextmanager
def _triton() -> Iterator[None]:
    """quack imports triton for its tuner, of which nothing here is used. Where triton is not installed, as on a machine
    that only compiles, something stands for it until the import is done."""
    if "quack" in sys.modules or find_spec("triton") is not None:
        yield
        return
    # What torch brings with quack looks for triton too, and is content without it: so it comes first.
    import_module("torch._inductor.compile_fx")
    triton, runtime, kept = (ModuleType(name) for name in ("triton", "triton.runtime", "triton.runtime.cache"))
    vars(kept)["FileCacheManager"] = object
    vars(runtime)["cache"] = kept
    vars(triton)["runtime"] = runtime
    sys.modules["triton"] = triton
    try:
        yield
    finally:
        del sys.modules["triton"]
