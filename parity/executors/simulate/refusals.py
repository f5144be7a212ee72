"""What the runtime refuses to launch, each with the code that CUDA gives.

The codes are those that `cudaLaunchKernelExC` of CUDA 13 gave on an H200 for kernels of a loaded library (where the
guide names another, this is what came back), but for cudaErrorLaunchOutOfResources, which was not tried.
"""

from __future__ import annotations

from dataclasses import dataclass

from parity.executors.simulate.cuda import PORTABLE_CLUSTER, STATIC_SHARED_LIMIT, Code, CudaError
from simulators.gpu import limits
from simulators.gpu.chip import Chip
from simulators.gpu.launch import Launch
from simulators.gpu.limits import LaunchError, Reason
from simulators.gpu.ptx.module import Kernel, Module

_CODES: dict[Reason, Code] = {
    "size": Code.cudaErrorInvalidValue,
    "cluster": Code.cudaErrorInvalidClusterSize,
    "cooperative": Code.cudaErrorCooperativeLaunchTooLarge,
    "resources": Code.cudaErrorLaunchOutOfResources,
}


@dataclass
class LoadedKernel:
    """A kernel of a library that was loaded, and what host code has set of it."""

    module: Module
    kernel: Kernel
    registers: int  # of each thread
    static_shared_bytes: int
    local_bytes: int
    max_dynamic_shared_bytes: int  # that a launch may ask for
    may_have_large_clusters: bool = False

    @staticmethod
    def loaded(
        module: Module, kernel: Kernel, registers: int, static_shared_bytes: int, local_bytes: int
    ) -> LoadedKernel:
        left = STATIC_SHARED_LIMIT - static_shared_bytes
        return LoadedKernel(module, kernel, registers, static_shared_bytes, local_bytes, left)


def allow_dynamic_shared(kernel: LoadedKernel, size: int, chip: Chip) -> None:
    """Set the limit of later launches. Errors: CudaError."""
    most = chip.shared_per_block - kernel.static_shared_bytes
    if not 0 <= size <= most:
        raise CudaError(
            Code.cudaErrorInvalidValue,
            f"{size} bytes of dynamic shared memory are allowed to {kernel.kernel.name}; {chip.name} has {most} for it",
        )
    kernel.max_dynamic_shared_bytes = size


def check_launch(launch: Launch, kernel: LoadedKernel, chip: Chip) -> None:
    """What the chip refuses, and what host code has not allowed. Errors: CudaError."""
    who = f"{launch.kernel} on {chip.name}"
    if launch.shared_bytes > kernel.max_dynamic_shared_bytes:
        raise CudaError(
            Code.cudaErrorInvalidValue,
            f"{who}: {launch.shared_bytes} bytes of dynamic shared memory; "
            f"{kernel.max_dynamic_shared_bytes} are allowed",
        )
    if launch.cluster_blocks > PORTABLE_CLUSTER and not kernel.may_have_large_clusters:
        raise CudaError(
            Code.cudaErrorInvalidClusterSize,
            f"{who}: {launch.cluster_blocks} blocks in a cluster; {PORTABLE_CLUSTER} are possible without the "
            "attribute for more",
        )
    try:
        limits.check_launch(chip, kernel.kernel, launch, kernel.static_shared_bytes, kernel.registers)
    except LaunchError as error:
        raise CudaError(_CODES[error.reason], f"{who}: {error}") from error
