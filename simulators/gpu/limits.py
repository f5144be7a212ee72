"""What a chip refuses to launch. Source: CUDA driver API, `cuLaunchKernelEx`; PTX ISA, "Performance-Tuning Directives"."""

from __future__ import annotations

from simulators.gpu.chip import Chip
from simulators.gpu.errors import SimulatorError
from simulators.gpu.launch import Launch
from simulators.gpu.machine.program import Program

_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)


class LaunchError(SimulatorError):
    """A launch that the chip does not accept. The message says what is wrong, and what would be right."""


def resident_blocks(chip: Chip, program: Program, launch: Launch) -> int:
    """Blocks that the chip holds at once. Registers are counted as far as the kernel names a most (`.maxnreg`)."""
    registers = program.kernel.directives.get("maxnreg", (0,))[0]
    shared = program.static_shared_bytes + launch.shared_bytes
    blocks = chip.blocks_resident(launch.block_threads, shared, registers)
    return blocks // launch.cluster_blocks * launch.cluster_blocks


def check_launch(chip: Chip, program: Program, launch: Launch) -> None:
    """Errors: LaunchError."""
    kernel = program.kernel
    _check_extents(launch)
    required = kernel.directives.get("reqntid")
    if required and (*required, 1, 1)[:3] != launch.block:
        raise LaunchError(f"{kernel.name} needs blocks of {required} threads, not {launch.block}")
    most = kernel.directives.get("maxntid")
    if most:
        threads = 1
        for extent in most:
            threads *= extent
        if launch.block_threads > threads:
            raise LaunchError(f"{kernel.name} allows {threads} threads a block, not {launch.block_threads}")
    if launch.block_threads > chip.threads_per_block:
        raise LaunchError(f"a block has at most {chip.threads_per_block} threads, not {launch.block_threads}")
    shared = program.static_shared_bytes + launch.shared_bytes
    if shared > chip.shared_per_block:
        raise LaunchError(f"a block has at most {chip.shared_per_block} bytes of shared memory, not {shared}")
    cluster = kernel.directives.get("reqnctapercluster")
    if cluster and (*cluster, 1, 1)[:3] != launch.cluster:
        raise LaunchError(f"{kernel.name} needs clusters of {cluster} blocks, not {launch.cluster}")
    if any(blocks % of_cluster for blocks, of_cluster in zip(launch.grid, launch.cluster, strict=True)):
        raise LaunchError(f"a grid of {launch.grid} blocks cannot be cut into clusters of {launch.cluster}")
    if launch.cluster_blocks > chip.blocks_per_cluster:
        raise LaunchError(f"a cluster has at most {chip.blocks_per_cluster} blocks, not {launch.cluster_blocks}")
    if len(launch.parameters) != kernel.parameter_bytes:
        raise LaunchError(
            f"{kernel.name} takes {kernel.parameter_bytes} bytes of parameters, not {len(launch.parameters)}"
        )
    resident = resident_blocks(chip, program, launch)
    if launch.is_cooperative and launch.num_blocks > resident:
        raise LaunchError(
            f"a cooperative launch of {launch.num_blocks} blocks is too large: {chip.name} holds {resident} at once"
        )
    if resident < launch.cluster_blocks:
        raise LaunchError(f"not even one cluster of {launch.cluster_blocks} such blocks fits on {chip.name}")


def _check_extents(launch: Launch) -> None:
    for what, extents, most in (("grid", launch.grid, _MAX_GRID), ("block", launch.block, _MAX_BLOCK)):
        for axis, extent, limit in zip("xyz", extents, most, strict=True):
            if not 1 <= extent <= limit:
                raise LaunchError(f"the {what}'s {axis} is {extent}; it must be from 1 to {limit}")
