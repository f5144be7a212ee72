"""What host code of our kernels launches is what it must: read out of its own call of the runtime."""

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest

from optimized.compile.arch import ARCHS, SM_90A, Arch
from optimized.compile.library import Library
from optimized.device import Tensor
from optimized.kernels.moe_dispatch import moe_dispatch
from optimized.kernels.rms_norm import rms_norm
from parity.executors.poisoned import GUARD, contiguous
from parity.executors.simulate.cuda import Code, CudaError
from parity.executors.simulate.device import SimulatedDevice
from parity.executors.simulate.memory import ALIGNMENT
from parity.executors.simulate.program import Runtime
from simulators.gpu.chip import CHIPS, H200, Chip
from tests.parity.executors.simulate.recorder import Recorder

BF16 = np.dtype(ml_dtypes.bfloat16)
ROWS, HIDDEN = 37, 1024
EACH = pytest.mark.parametrize("arch", ARCHS.values(), ids=lambda arch: arch.name)


def device_on(recorder: Recorder, kernels: Library, arch: Arch = SM_90A, chip: Chip | None = None) -> SimulatedDevice:
    return SimulatedDevice(Runtime(recorder, chip or CHIPS[arch.name]), arch, kernels)


def norm_inputs(device: SimulatedDevice) -> tuple[Tensor, Tensor]:
    x = device.allocate(contiguous("x", (ROWS, HIDDEN), BF16), is_initialized=True)
    weight = device.allocate(contiguous("weight", (HIDDEN,), BF16), is_initialized=True)
    return x.view, weight.view


@EACH
def test_grid_block_and_parameters_of_a_norm(arch: Arch, kernels: Library) -> None:
    """A row of 1,024 is 128 accesses of 16 bytes, or 64 of 32: one block of 128 threads has one row, or two."""
    recorder = Recorder()
    device = device_on(recorder, kernels, arch)
    with device.memory(0xFF):
        x, weight = norm_inputs(device)
        out = rms_norm(x, weight, 1e-6)
        (seen,) = recorder.seen
    (launch,) = recorder.launches
    rows_per_block = {16: 1, 32: 2}[arch.vector_bytes]
    assert launch.grid == (-(-ROWS // rows_per_block), 1, 1) and launch.block == (128, 1, 1)
    assert launch.cluster == (1, 1, 1) and not launch.is_cooperative
    # x and out are each an address and a number of rows, and 64 bits of stride if that is not known; weight an address.
    address, rows = struct.unpack_from("<Qi", launch.parameters)
    assert (address, rows) == (x.data_ptr(), ROWS)
    words = struct.unpack(f"<{len(launch.parameters) // 8}Q", launch.parameters)
    assert weight.data_ptr() in words and out.data_ptr() in words
    assert [seen[one.data_ptr()][1:] for one in (x, weight, out)] == [
        ("x", True),
        ("weight", True),
        ("scratch 2", False),
    ]
    assert recorder.allocations == {}, "nothing is left when the memory's context ends"


def test_only_the_array_is_the_chips_memory(kernels: Library) -> None:
    recorder = Recorder()
    device = device_on(recorder, kernels)
    with device.memory(0x7F):
        placed = device.allocate(contiguous("x", (3, 5), BF16), is_initialized=True)
        assert recorder.allocations == {placed.view.data_ptr(): (30, "x", True)}
        assert placed.view.data_ptr() % ALIGNMENT == 0
        assert (placed.memory == 0x7F).all() and len(placed.memory) == 30 + 2 * GUARD
        assert placed.has_clean_surroundings()
        placed.memory[GUARD + 30] = 0
        assert not placed.has_clean_surroundings()


def test_a_grid_whose_blocks_wait_is_cooperative(kernels: Library) -> None:
    recorder = Recorder()
    device = device_on(recorder, kernels)
    tokens, experts, per_token = 512, 128, 8
    with device.memory(0xFF):
        x = device.allocate(contiguous("x", (tokens, 256), BF16), is_initialized=True).view
        ids = device.allocate(contiguous("ids", (tokens, per_token), np.dtype(np.int32)), is_initialized=True)
        ids.values[:] = np.arange(per_token)
        moe_dispatch(x, ids.view, experts, tile=16)
        counter = device.barrier_counter()
    waiting = [launch for launch in recorder.launches if launch.is_cooperative]
    assert waiting
    for launch in waiting:
        assert launch.shared_bytes > 0 and 1 < launch.num_blocks <= 2 * H200.num_sms
        assert struct.pack("<Q", counter.data_ptr()) in launch.parameters
    assert list(recorder.allocations) == [counter.data_ptr()], "the counter outlives the memory of a call"


def test_the_counter_is_renewed_after_a_failure(kernels: Library) -> None:
    recorder = Recorder()
    device = device_on(recorder, kernels)
    with device.memory(0xFF):
        first = device.barrier_counter()
    with pytest.raises(KeyError), device.memory(0xFF):
        assert device.barrier_counter() is first
        raise KeyError
    assert recorder.allocations == {}
    with device.memory(0xFF):
        assert device.barrier_counter() is not first


def test_what_the_chip_refuses_comes_out_of_the_host_function(kernels: Library) -> None:
    recorder = Recorder()
    narrow = Chip("a narrow chip", (9, 0), 132, threads_per_block=64)
    device = device_on(recorder, kernels, chip=narrow)
    with device.memory(0xFF), pytest.raises(CudaError, match="128 threads in a block; 64 are possible") as raised:
        rms_norm(*norm_inputs(device), 1e-6)
    assert raised.value.code == Code.cudaErrorInvalidValue and recorder.launches == []


@pytest.mark.parametrize("error", [ZeroDivisionError("in the simulator"), KeyboardInterrupt()])
def test_an_error_of_the_simulator_comes_out_as_it_is(error: BaseException, kernels: Library) -> None:
    recorder = Recorder(error)
    device = device_on(recorder, kernels)
    with device.memory(0xFF):
        with pytest.raises(type(error)) as raised:
            rms_norm(*norm_inputs(device), 1e-6)
        assert raised.value is error
        recorder.error = None
        rms_norm(*norm_inputs(device), 1e-6)  # and the next call is not held to it
    assert len(recorder.launches) == 2


def test_host_code_refuses_tensors_that_it_is_not_made_for(kernels: Library) -> None:
    """Its own message, for its own reasons: no callback is to blame."""
    recorder = Recorder()
    device = device_on(recorder, kernels)
    with device.memory(0xFF):
        x, weight = norm_inputs(device)
        rms_norm(x, weight, 1e-6)
        ((kernel, _),) = device._programs
        with pytest.raises((TypeError, ValueError), match="1024"):
            device.run(kernel, x, x, x)
    assert len(recorder.launches) == 1
