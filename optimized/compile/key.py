"""What a compiled kernel is filed under: everything that its machine code depends on.

    key = SHA-256 of: the kernel's class and constants, the architecture, every version of the compiler, the source

An object built for one chip, by one compiler, or from one text is never handed to another.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib import metadata
from pathlib import Path

from optimized.compile.arch import Arch
from optimized.compile.kernel import Kernel

_ROOT = Path(__file__).parent.parent
_COMPILERS = ("nvidia-cutlass-dsl", "apache-tvm-ffi")  # by the beginning of a distribution's name


def compile_key(kernel: Kernel, arch: Arch, *, line_info: bool = False) -> str:
    """64 hexadecimal digits for a kernel and an architecture. line_info: see `build`."""
    described = {
        "kernel": f"{type(kernel).__module__}:{type(kernel).__qualname__}",
        "constants": kernel.constants,
        "arch": arch.name,
        "line_info": line_info,
        "compilers": compiler_versions(),
        "source": _LOADED,
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


@cache
def compiler_versions() -> dict[str, str]:
    """Every installed part of the compiler, the libraries included that carry its binaries, and its version."""
    names = (dist.metadata["Name"].lower() for dist in metadata.distributions() if dist.metadata["Name"])
    return {name: metadata.version(name) for name in sorted(set(names)) if name.startswith(_COMPILERS)}


def source_hash() -> str:
    """Of all Python text of the optimized panel as it is on disk now: a kernel may call any of it."""
    digest = hashlib.sha256()
    for path in sorted(_ROOT.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(_ROOT)} {len(text)}\n".encode() + text)
    return digest.hexdigest()


# Of the text that this process runs: this module is imported with the first kernel.
_LOADED = source_hash()


def sources_are_those_of_keys() -> bool:
    """Is the text on disk still what keys say? The compiler reads kernels from their files."""
    return source_hash() == _LOADED
