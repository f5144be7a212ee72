"""The chip's limits. What is refused, with which code, is what an H200 gave for kernels like these."""

from __future__ import annotations

import pytest

from parity.executors.simulate.cuda import DEVICE_ATTRIBUTES, Code, CudaError
from parity.executors.simulate.refusals import LoadedKernel, allow_dynamic_shared, check_launch
from simulators.gpu.chip import H200
from simulators.gpu.launch import Launch
from simulators.gpu.ptx.parser import parse

HEAD = ".version 8.8\n.target sm_90a\n.address_size 64\n"


def loaded(directives: str = "", *, registers: int = 32, static_shared_bytes: int = 0) -> LoadedKernel:
    module = parse(f"{HEAD}.visible .entry k()\n{directives}\n{{ ret; }}")
    return LoadedKernel.loaded(module, module.kernels["k"], registers, static_shared_bytes, 0)


def launch(grid: tuple[int, ...] = (1,), block: tuple[int, ...] = (128,), **others: object) -> Launch:
    x, y, z = (*grid, 1, 1)[:3]
    a, b, c = (*block, 1, 1)[:3]
    return Launch("k", (x, y, z), (a, b, c), b"", **others)  # type: ignore[arg-type]


VALUE, CLUSTER = Code.cudaErrorInvalidValue, Code.cudaErrorInvalidClusterSize


@pytest.mark.parametrize(
    ("directives", "asked", "code", "message"),
    [
        ("", launch(block=(1025,)), VALUE, "a block of"),
        ("", launch(block=(32, 33)), VALUE, "1056 threads in a block; 1024 are possible"),
        ("", launch(block=(1, 1, 65)), VALUE, "a block of"),
        ("", launch(block=(0,)), VALUE, "a block of"),
        ("", launch((1, 65536)), VALUE, "a grid of"),
        ("", launch((1, 1, 65536)), VALUE, "a grid of"),
        ("", launch((0,)), VALUE, "a grid of"),
        (".reqntid 128, 1, 1", launch(block=(64,)), VALUE, r"compiled for \(128, 1, 1\) alone"),
        (".reqntid 128, 1, 1", launch(block=(64, 2)), VALUE, r"compiled for \(128, 1, 1\) alone"),
        (".maxntid 128, 1, 1", launch(block=(256,)), VALUE, "compiled for at most 128"),
        ("", launch(shared_bytes=49153), VALUE, "49153 bytes of dynamic shared memory; 49152 are allowed"),
        ("", launch((9,), cluster=(9, 1, 1)), CLUSTER, "9 blocks in a cluster; 8 are possible without"),
        ("", launch((3,), cluster=(2, 1, 1)), CLUSTER, "is not made of clusters of"),
        ("", launch((2,), cluster=(0, 1, 1)), CLUSTER, "0 blocks in a cluster"),
        (".reqnctapercluster 2, 1, 1", launch((4,), cluster=(4, 1, 1)), CLUSTER, "is compiled for"),
        (
            "",
            launch((132 * 16 + 1,), is_cooperative=True),
            Code.cudaErrorCooperativeLaunchTooLarge,
            "holds 2112 at once",
        ),
    ],
)
def test_refused(directives: str, asked: Launch, code: Code, message: str) -> None:
    with pytest.raises(CudaError, match=message) as raised:
        check_launch(asked, loaded(directives), H200)
    assert raised.value.code == code
    assert str(raised.value).startswith(f"{code.name} ({code.value}): k on NVIDIA H200: ")


@pytest.mark.parametrize(
    ("directives", "asked"),
    [
        ("", launch(block=(1024,))),
        ("", launch((2**31 - 1, 65535, 65535))),
        (".reqntid 128, 1, 1", launch()),
        (".maxntid 128, 1, 1", launch(block=(64, 2))),
        ("", launch(shared_bytes=49152)),
        ("", launch((16,), cluster=(8, 1, 1))),
        ("", launch((132 * 16,), is_cooperative=True)),
    ],
)
def test_taken(directives: str, asked: Launch) -> None:
    check_launch(asked, loaded(directives), H200)


def test_dynamic_shared_memory_is_allowed_up_to_the_chips() -> None:
    kernel = loaded(static_shared_bytes=4096)
    assert kernel.max_dynamic_shared_bytes == 45056
    with pytest.raises(CudaError, match=r"232448 bytes of dynamic shared memory are allowed to k; .* has 228352"):
        allow_dynamic_shared(kernel, 232448, H200)
    with pytest.raises(CudaError):
        allow_dynamic_shared(kernel, -1, H200)
    with pytest.raises(CudaError):
        check_launch(launch(shared_bytes=60000), kernel, H200)
    allow_dynamic_shared(kernel, 60000, H200)
    check_launch(launch(shared_bytes=60000), kernel, H200)


def test_large_clusters_need_an_attribute() -> None:
    kernel = loaded()
    kernel.may_have_large_clusters = True
    check_launch(launch((32,), cluster=(16, 1, 1)), kernel, H200)
    with pytest.raises(CudaError, match=r"17 blocks in a cluster; 16 are possible$"):
        check_launch(launch((34,), cluster=(17, 1, 1)), kernel, H200)


def test_registers_count() -> None:
    check_launch(launch(block=(1024,)), loaded(registers=64), H200)
    with pytest.raises(CudaError, match="no room for a block of 1024 threads with 65 registers each"):
        check_launch(launch(block=(1024,)), loaded(registers=65), H200)
    asked = launch((132 * 3,), block=(1024,), is_cooperative=True)
    with pytest.raises(CudaError, match="holds 132 at once"):
        check_launch(asked, loaded(registers=64), H200)


def test_attributes_of_an_h200() -> None:
    """As the chip itself answered, but for its L2."""
    measured = {
        **{1: 1024, 2: 1024, 4: 64, 5: 2147483647, 6: 65535, 8: 49152, 10: 32, 12: 65536, 16: 132, 39: 2048, 75: 9},
        **{76: 0, 81: 233472, 82: 65536, 95: 1, 97: 232448, 106: 32, 111: 1024, 120: 1},
    }
    assert {number: DEVICE_ATTRIBUTES[number](H200) for number in measured} == measured
