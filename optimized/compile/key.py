"""What a compiled kernel is filed under: everything that its machine code depends on.

    key = SHA-256 of: the kernel's class and constants, the architecture, every version of the compiler, the source

An object built for one chip, by one compiler, or from one text is never handed to another.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from optimized.compile.arch import Arch

_ROOT = Path(__file__).parent.parent
_COMPILERS = ("nvidia-cutlass-dsl", "apache-tvm-ffi")  # by the beginning of a distribution's name


def compile_key(kernel: Any, arch: Arch) -> str:
    """64 hexadecimal digits for a kernel (a frozen dataclass of constants that JSON can hold) and an architecture."""
    described = {
        "kernel": f"{type(kernel).__module__}:{type(kernel).__qualname__}",
        "constants": {field.name: getattr(kernel, field.name) for field in fields(kernel)},
        "arch": arch.name,
        "compilers": compiler_versions(),
        "source": source_hash(),
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


@cache
def compiler_versions() -> dict[str, str]:
    """Every installed part of the compiler, the libraries included that carry its binaries, and its version."""
    names = (dist.metadata["Name"].lower() for dist in metadata.distributions() if dist.metadata["Name"])
    return {name: metadata.version(name) for name in sorted(set(names)) if name.startswith(_COMPILERS)}


@cache
def source_hash() -> str:
    """Of all Python text of the optimized panel: a kernel may call any of it."""
    digest = hashlib.sha256()
    for path in sorted(_ROOT.rglob("*.py")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(_ROOT)} {len(text)}\n".encode() + text)
    return digest.hexdigest()
