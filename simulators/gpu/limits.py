"""What a chip refuses to launch.

Source: CUDA driver API, `cuLaunchKernelEx`; PTX ISA, "Performance-Tuning Directives", "Cluster Dimension Directives".
"""

from __future__ import annotations

from typing import Literal

from simulators.gpu.chip import Chip
from simulators.gpu.errors import SimulatorError
from simulators.gpu.launch import Extent, Launch
from simulators.gpu.ptx.module import Kernel

MAX_GRID: Extent = (2**31 - 1, 65535, 65535)  # blocks
MAX_BLOCK: Extent = (1024, 1024, 64)  # threads

# What about a launch is refused: its sizes, its cluster, that its blocks cannot all be there at once, or even one.
Reason = Literal["size", "cluster", "cooperative", "resources"]


class LaunchError(SimulatorError):
    """A launch that the chip does not accept. The message says what is wrong, and what would be right."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def most_threads(kernel: Kernel) -> int | None:
    """Of a block, where the PTX says so."""
    for name in ("reqntid", "maxntid"):
        if name in kernel.directives:
            x, y, z = extent_of(kernel.directives[name])
            return x * y * z
    return None


def extent_of(lengths: tuple[int, ...]) -> Extent:
    """What a directive does not say is 1."""
    x, y, z = (*lengths, 1, 1)[:3]
    return x, y, z


def resident_blocks(chip: Chip, kernel: Kernel, launch: Launch, static_shared_bytes: int, registers: int = 0) -> int:
    """Blocks that the chip holds at once, whole clusters of them. registers: of each thread, as far as is known."""
    registers = registers or kernel.directives.get("maxnreg", (0,))[0]
    blocks = chip.blocks_resident(launch.block_threads, static_shared_bytes + launch.shared_bytes, registers)
    return blocks // launch.cluster_blocks * launch.cluster_blocks


def check_launch(chip: Chip, kernel: Kernel, launch: Launch, static_shared_bytes: int, registers: int = 0) -> None:
    """registers: of each thread; 0 if they are not known. Errors: LaunchError."""
    _check_extents(chip, kernel, launch)
    _check_cluster(chip, kernel, launch)
    shared = static_shared_bytes + launch.shared_bytes
    if shared > chip.shared_per_block:
        raise LaunchError("size", f"{shared} bytes of shared memory in a block; {chip.shared_per_block} are possible")
    resident = resident_blocks(chip, kernel, launch, static_shared_bytes, registers)
    with_registers = f" with {registers} registers each" if registers else ""
    each = f"{launch.block_threads} threads{with_registers} and {shared} bytes of shared memory"
    if resident == 0:
        raise LaunchError("resources", f"{chip.name} has no room for a block of {each}")
    if launch.is_cooperative and launch.num_blocks > resident:
        raise LaunchError(
            "cooperative",
            f"{launch.num_blocks} blocks wait for each other, and {chip.name} holds {resident} at once, of {each}",
        )


def _check_extents(chip: Chip, kernel: Kernel, launch: Launch) -> None:
    for extent, most, what in ((launch.grid, MAX_GRID, "a grid"), (launch.block, MAX_BLOCK, "a block")):
        if not all(1 <= length <= limit for length, limit in zip(extent, most, strict=True)):
            raise LaunchError("size", f"{what} of {extent}; it may be (1, 1, 1) to {most}")
    threads = launch.block_threads
    if threads > chip.threads_per_block:
        raise LaunchError("size", f"{threads} threads in a block; {chip.threads_per_block} are possible")
    required = kernel.directives.get("reqntid")
    if required is not None and launch.block != extent_of(required):
        raise LaunchError(
            "size", f"a block of {launch.block}; {kernel.name} is compiled for {extent_of(required)} alone"
        )
    most_of_block = most_threads(kernel)
    if most_of_block is not None and threads > most_of_block:
        raise LaunchError(
            "size", f"{threads} threads in a block; {kernel.name} is compiled for at most {most_of_block}"
        )
    if len(launch.parameters) != kernel.parameter_bytes:
        raise LaunchError(
            "size", f"{len(launch.parameters)} bytes of parameters; {kernel.name} takes {kernel.parameter_bytes}"
        )


def _check_cluster(chip: Chip, kernel: Kernel, launch: Launch) -> None:
    required = kernel.directives.get("reqnctapercluster")
    if required is not None and launch.cluster != extent_of(required):
        raise LaunchError(
            "cluster", f"a cluster of {launch.cluster}; {kernel.name} is compiled for {extent_of(required)}"
        )
    if not 1 <= launch.cluster_blocks <= chip.blocks_per_cluster:
        raise LaunchError(
            "cluster", f"{launch.cluster_blocks} blocks in a cluster; {chip.blocks_per_cluster} are possible"
        )
    if any(blocks % length for blocks, length in zip(launch.grid, launch.cluster, strict=True)):
        raise LaunchError("cluster", f"a grid of {launch.grid} is not made of clusters of {launch.cluster}")
