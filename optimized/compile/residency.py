"""How many blocks of a kernel a chip holds at once.

Blocks that wait for each other must all be resident, or those that wait keep the others out for ever. The compiled host
code launches what it is given, so host code asks here first.

Source: CUDA C++ Programming Guide 13, "Compute Capabilities" and "Hardware Multithreading".
"""

from __future__ import annotations

from optimized.compile.arch import Arch
from optimized.compile.launch_policy import MAX_THREADS, WARP

MAX_REGISTERS = 255  # of a thread
_PARTITIONS = 4  # of a multiprocessor; a warp's registers lie in one
_REGISTER_UNIT = 256  # a warp gets a multiple of so many
_SHARED_UNIT = 128  # a block gets a multiple of so many bytes
_SYSTEM_SHARED = 1024  # bytes of shared memory that the system takes of each block


def most_registers(arch: Arch, threads: int) -> int:
    """The most that the compiler can have given each thread of a kernel that states its block's size: so many that one
    block fits a multiprocessor."""
    warps = -(-threads // WARP)
    warps_per_partition = -(-warps // _PARTITIONS)
    of_warp = arch.registers_per_sm // _PARTITIONS // warps_per_partition // _REGISTER_UNIT * _REGISTER_UNIT
    return min(MAX_REGISTERS, of_warp // WARP)


def blocks_by_limit(arch: Arch, *, threads: int, registers: int, shared_bytes: int) -> dict[str, int]:
    """How many blocks of a multiprocessor each thing that it has is enough for.

    threads, shared_bytes: of a block. registers: of a thread.
    """
    warps = -(-threads // WARP)
    registers_of_warp = _round_up(max(registers, 1) * WARP, _REGISTER_UNIT)
    warps_of_registers = arch.registers_per_sm // _PARTITIONS // registers_of_warp * _PARTITIONS
    shared = _round_up(shared_bytes + _SYSTEM_SHARED, _SHARED_UNIT)
    return {
        "registers": 0 if registers > MAX_REGISTERS else warps_of_registers // warps,
        "shared memory": 0 if shared_bytes > arch.shared_bytes_per_block else arch.shared_bytes_per_sm // shared,
        "threads": 0 if threads > MAX_THREADS else arch.max_threads_per_sm // (warps * WARP),
        "blocks": arch.max_blocks_per_sm,
    }


def resident_blocks(arch: Arch, num_sms: int, *, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks that are resident at once on a chip of which nothing else has a part; 0 where not even one fits."""
    limits = blocks_by_limit(arch, threads=threads, registers=registers, shared_bytes=shared_bytes)
    return min(limits.values()) * num_sms


def require_resident(arch: Arch, num_sms: int, blocks: int, *, threads: int, registers: int, shared_bytes: int) -> None:
    """Errors: ValueError if a cooperative grid of so many blocks would wait for blocks that cannot start."""
    fit = resident_blocks(arch, num_sms, threads=threads, registers=registers, shared_bytes=shared_bytes)
    if blocks > fit:
        raise ValueError(
            f"{blocks} blocks wait for each other, and {arch.name} with {num_sms} multiprocessors holds {fit} at once "
            f"of {threads} threads, {registers} registers a thread and {shared_bytes} bytes of shared memory"
        )


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
