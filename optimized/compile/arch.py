"""The chips that kernels are compiled for, and what of them a launch depends on.

Sources: CUDA C++ Programming Guide 13, "Compute Capabilities"; multiprocessors of the H200, B200 and B300 boards.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Arch:
    """One target of compilation."""

    name: str  # as the compiler spells it
    chip: str  # a board that has it
    compute_capability: tuple[int, int]
    num_sms: int  # multiprocessors of that board; a device at hand says its own
    vector_bytes: int  # the widest global load or store of one thread
    max_threads_per_sm: int = 2048
    max_blocks_per_sm: int = 32
    registers_per_sm: int = 65536
    shared_bytes_per_sm: int = 233472  # 228 KiB, of which each resident block takes 1 KiB for the system
    shared_bytes_per_block: int = 232448  # 227 KiB


SM_90A = Arch("sm_90a", "H200", (9, 0), num_sms=132, vector_bytes=16)
SM_100A = Arch("sm_100a", "B200", (10, 0), num_sms=148, vector_bytes=32)
SM_103A = Arch("sm_103a", "B300", (10, 3), num_sms=148, vector_bytes=32)

ARCHS = {arch.name: arch for arch in (SM_90A, SM_100A, SM_103A)}


def arch_named(name: str) -> Arch:
    """Errors: ValueError that lists the names there are."""
    try:
        return ARCHS[name]
    except KeyError:
        raise ValueError(f"unknown architecture {name!r}; known are {', '.join(ARCHS)}") from None


def arch_of_capability(major: int, minor: int) -> Arch:
    """The architecture of a chip at hand. Errors: ValueError that names those that are supported."""
    for arch in ARCHS.values():
        if arch.compute_capability == (major, minor):
            return arch
    known = ", ".join(f"{arch.chip} ({a}.{b})" for arch in ARCHS.values() for a, b in [arch.compute_capability])
    raise ValueError(f"a GPU of compute capability {major}.{minor} is not supported; supported are {known}")
