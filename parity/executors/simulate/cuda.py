"""Numbers of the CUDA runtime that compiled host code reads and writes.

Source: CUDA Runtime API 13, "Data types used by CUDA Runtime", and CUDA Driver API 13, for kernels' attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import POINTER, Structure, c_size_t, c_uint32, c_void_p
from enum import IntEnum

from simulators.gpu.chip import WARP, Chip
from simulators.gpu.limits import MAX_BLOCK, MAX_GRID

STATIC_SHARED_LIMIT = 48 * 1024  # bytes of a block's shared memory, unless an attribute of the kernel allows more
PORTABLE_CLUSTER = 8  # blocks that a cluster may have on every chip that has clusters


class Code(IntEnum):
    """What a function of the runtime returns. 0 is success."""

    cudaErrorInvalidValue = 1
    cudaErrorInvalidDevice = 101
    cudaErrorInvalidKernelImage = 200
    cudaErrorInvalidResourceHandle = 400
    cudaErrorSymbolNotFound = 500
    cudaErrorLaunchOutOfResources = 701
    cudaErrorLaunchFailure = 719
    cudaErrorCooperativeLaunchTooLarge = 720
    cudaErrorInvalidClusterSize = 912


class CudaError(Exception):
    """Something that the chip's runtime refuses, and the code it would give."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(f"{code.name} ({code.value}): {message}")
        self.code = code


class LaunchAttribute(IntEnum):
    """Of one launch. What is not here is not simulated, and named as such."""

    COOPERATIVE = 2
    CLUSTER_DIMENSION = 4
    CLUSTER_SCHEDULING = 5  # a preference among orders, all of which are allowed
    PROGRAMMATIC_STREAM_SERIALIZATION = 6  # the next kernel may begin early; here each ends before the next begins
    PRIORITY = 8


class KernelAttribute(IntEnum):
    """Of one kernel, to be read or set."""

    MAX_THREADS_PER_BLOCK = 0
    SHARED_BYTES = 1
    LOCAL_BYTES = 3
    REGISTERS = 4
    MAX_DYNAMIC_SHARED_BYTES = 8
    SHARED_CARVEOUT = 9
    NON_PORTABLE_CLUSTER = 14


# Of a chip, by the number of `cudaDeviceAttr`.
DEVICE_ATTRIBUTES: dict[int, Callable[[Chip], int]] = {
    1: lambda chip: chip.threads_per_block,
    2: lambda chip: MAX_BLOCK[0],
    3: lambda chip: MAX_BLOCK[1],
    4: lambda chip: MAX_BLOCK[2],
    5: lambda chip: MAX_GRID[0],
    6: lambda chip: MAX_GRID[1],
    7: lambda chip: MAX_GRID[2],
    8: lambda chip: STATIC_SHARED_LIMIT,
    10: lambda chip: WARP,
    12: lambda chip: chip.registers_per_sm,
    16: lambda chip: chip.num_sms,
    38: lambda chip: chip.l2_bytes,
    39: lambda chip: chip.threads_per_sm,
    75: lambda chip: chip.capability[0],
    76: lambda chip: chip.capability[1],
    81: lambda chip: chip.shared_per_sm,
    82: lambda chip: chip.registers_per_sm,
    95: lambda chip: 1,  # cooperative launches
    97: lambda chip: chip.shared_per_block,
    106: lambda chip: chip.blocks_per_sm,
    111: lambda chip: chip.shared_reserved,
    120: lambda chip: 1,  # clusters
}


class AttributeEntry(Structure):
    """`cudaLaunchAttribute`."""

    _fields_ = (("id", c_uint32), ("padding", c_uint32), ("value", c_uint32 * 16))


class LaunchConfig(Structure):
    """`cudaLaunchConfig_t`."""

    _fields_ = (
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("shared_bytes", c_size_t),
        ("stream", c_void_p),
        ("attributes", POINTER(AttributeEntry)),
        ("num_attributes", c_uint32),
    )


class FatbinHeader(Structure):
    """What machine code that is loaded begins with; an entry follows."""

    _fields_ = (("magic", c_uint32), ("version_and_size", c_uint32), ("size", c_size_t))

    MAGIC = 0xBA55ED50


class FatbinEntry(Structure):
    """Its header is followed by a cubin."""

    _fields_ = (("kind_and_version", c_uint32), ("header_size", c_uint32), ("size", c_size_t))
