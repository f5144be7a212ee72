"""What compiled host code says of a launch, read from its text in the LLVM dialect of MLIR.

A launch is described by a `cudaLaunchConfig_t` (CUDA Runtime API 13): grid, block, bytes of dynamic shared memory,
stream, attributes, their number. Host code stores each member there; that of shared memory is a constant.
"""

from __future__ import annotations

import re

_CONFIG = r"!llvm\.struct<\(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32\)>"
_PLACE = re.compile(rf"(%\w+) = llvm\.getelementptr %\w+\[0, 2\] : \(!llvm\.ptr\) -> !llvm\.ptr, {_CONFIG}\s")
_CONSTANT = re.compile(r"(%\w+) = llvm\.mlir\.constant\((\d+) : i64\) : i64")
_STORE = re.compile(r"llvm\.store (%\w+), (%\w+) : i64")


def dynamic_shared_bytes(text: str) -> int:
    """Of each block of the one launch that a kernel's host code holds.

    Errors: ValueError where there is not one launch, or where its shared memory is not a constant.
    """
    found = []
    for function in text.split("llvm.func @"):  # names of values are those of a function
        places = set(_PLACE.findall(function))
        constants = dict(_CONSTANT.findall(function))
        found += [constants.get(value) for value, place in _STORE.findall(function) if place in places]
    if len(found) != 1 or found[0] is None:
        raise ValueError(f"host code is to launch once, with so much shared memory as is known; it says {found}")
    return int(found[0])
