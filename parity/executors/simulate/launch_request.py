"""What `cudaLaunchKernelEx` is given, read into a launch."""

from __future__ import annotations

import ctypes
from typing import Any

from parity.executors.simulate.cuda import LaunchAttribute, LaunchConfig
from simulators.gpu.launch import Extent, Launch
from simulators.gpu.ptx.module import Kernel


def launch_of(config: LaunchConfig, kernel: Kernel, arguments: Any) -> Launch:
    """arguments: a `void**`, one pointer a parameter. Errors: NotImplementedError for an attribute that is unknown."""
    attributes = _attributes(config)
    cluster = attributes.get(LaunchAttribute.CLUSTER_DIMENSION)
    return Launch(
        kernel.name,
        _extent(config.grid),
        _extent(config.block),
        parameter_block(kernel, arguments),
        config.shared_bytes,
        _required_cluster(kernel) if cluster is None else _extent(cluster),
        bool(attributes.get(LaunchAttribute.COOPERATIVE, (0,))[0]),
    )


def parameter_block(kernel: Kernel, arguments: Any) -> bytes:
    """The parameters' bytes, each where the PTX has it."""
    block = bytearray(kernel.parameter_bytes)
    for number, one in enumerate(kernel.parameters):
        block[one.offset : one.offset + one.size] = ctypes.string_at(arguments[number], one.size)
    return bytes(block)


def _attributes(config: LaunchConfig) -> dict[LaunchAttribute, Any]:
    found: dict[LaunchAttribute, Any] = {}
    for number in range(config.num_attributes):
        entry = config.attributes[number]
        try:
            found[LaunchAttribute(entry.id)] = entry.value
        except ValueError:
            raise NotImplementedError(f"launch attribute {entry.id} is not simulated") from None
    return found


def _required_cluster(kernel: Kernel) -> Extent:
    return _extent((*kernel.directives.get("reqnctapercluster", ()), 1, 1, 1))


def _extent(lengths: Any) -> Extent:
    return lengths[0], lengths[1], lengths[2]
