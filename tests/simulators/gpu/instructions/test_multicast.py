"""Multicast windows: all-reduce through them, who is told of what, and what they cannot be or be used for."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from simulators.gpu.checks.counters import Counters
from simulators.gpu.checks.races import Races
from simulators.gpu.checks.uninitialised import UninitialisedReads
from simulators.gpu.chip import H200
from simulators.gpu.errors import SimulatorError
from simulators.gpu.gpu import Gpu
from simulators.gpu.launch import Launch
from simulators.gpu.memory.global_memory import GlobalMemory
from simulators.gpu.ptx.parser import parse
from tests.simulators.gpu.instructions.multicast import ALL_REDUCE, OWN, WINDOW, four, launched
from tests.simulators.gpu.launching import kernel


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_an_all_reduce_of_four_replicas_is_the_ordered_sum(seed: int | None) -> None:
    replicas = four(np.float32, 8 * 64 * 4)
    wanted = ((replicas[0] + replicas[1]) + replicas[2]) + replicas[3]
    assert not np.array_equal(wanted, ((replicas[3] + replicas[2]) + replicas[1]) + replicas[0])
    report = launched(ALL_REDUCE, replicas, seed=seed, grid=8, block=64, watchers=[Races])
    assert not report.findings
    for one in replicas:
        assert np.array_equal(one, wanted)


def test_two_windows_of_one_instruction() -> None:
    """Threads of the upper half use a window with one replica more, at other addresses."""
    arrays = [np.arange(64, dtype=np.uint32) * 10**i for i in range(5)]
    gpu = Gpu(H200)
    out = np.zeros(32, np.uint32)
    for i, one in enumerate([*arrays, out]):
        gpu.memory.add_array(one, f"array {i}")
    gpu.memory.add_multicast(WINDOW, 64, [one.ctypes.data for one in arrays[:2]], "two")
    gpu.memory.add_multicast(WINDOW + 64, 64, [one.ctypes.data + 128 for one in arrays[2:]], "three")
    body = """
    mul.wide.u32 %rd9, %r1, 4; add.s64 %rd3, %rd1, %rd9; add.s64 %rd4, %rd2, %rd9;
    multimem.ld_reduce.add.u32 %r5, [%rd3]; st.global.u32 [%rd4], %r5; multimem.st.u32 [%rd3], 7;
    """
    parameters = struct.pack("<2Q", WINDOW, out.ctypes.data)
    gpu.launch(parse(kernel(body, 2)), Launch("k", (1, 1, 1), (32, 1, 1), parameters))
    lane = np.arange(32)
    assert np.array_equal(out, np.where(lane < 16, lane * 11, (lane + 16) * 11100))
    assert all((one[:16] == 7).all() and one[16] == 16 * 10**i for i, one in enumerate(arrays[:2]))
    assert all((one[32:48] == 7).all() and one[31] == 31 * 10**i for i, one in enumerate(arrays[2:], 2))


# Block 0 writes data everywhere and tells everywhere; block 1 waits at its own replica of the flag. %rd3 is replica 1.
PASS = """
setp.eq.u32 %p1, %r2, 0;
@%p1 bra PRODUCE;
WAIT:
ld.acquire.sys.global.u32 %r5, [%rd3+64];
setp.eq.u32 %p2, %r5, 0;
@%p2 bra WAIT;
ld.global.u32 %r6, [%rd3];
st.global.u32 [%rd6], %r6;
bra END;
PRODUCE:
multimem.st.weak.global.u32 [%rd1], 7;
{}
multimem.red.{}.sys.global.add.u32 [%rd1+64], 1;
END:
"""


@pytest.mark.parametrize(
    ("fence", "order", "is_right"),
    [("", "release", True), ("fence.acq_rel.sys;", "relaxed", True), ("", "relaxed", False)],
)
def test_a_store_everywhere_and_a_flag(fence: str, order: str, is_right: bool) -> None:
    seen, raced = set(), []
    for seed in range(12):
        replicas, out = [np.zeros(32, np.uint32) for _ in range(4)], np.zeros(1, np.uint32)
        body = PASS.format(fence, order)
        report = launched(body, replicas, [out], seed=seed, grid=2, block=1, watchers=[Races])
        seen.add(int(out[0]))
        raced.append(bool(report.findings))
        assert all(one[0] == 7 and one[16] == 1 for one in replicas)
    assert seen == {7} if is_right else 0 in seen
    assert any(raced) != is_right


def test_stores_of_two_blocks_race_at_each_replica() -> None:
    replicas = [np.zeros(32, np.uint32) for _ in range(4)]
    body = "add.u32 %r5, %r2, 1; multimem.st.u32 [%rd1], %r5;"
    (finding,) = launched(body, replicas, grid=2, block=1, watchers=[Races]).findings
    assert "'array 0' byte 0" in str(finding)
    assert not launched(body.replace(".st", ".st.relaxed.sys"), replicas, grid=2, block=1, watchers=[Races]).findings
    assert not launched(body.replace(".st", ".red.add"), replicas, grid=2, block=1, watchers=[Races]).findings


def test_watchers_are_told_of_each_replica() -> None:
    replicas, out = [np.zeros(128, np.float32) for _ in range(4)], np.zeros(128, np.float32)
    report = launched(ALL_REDUCE, replicas, [out], watchers=[Counters])
    (counters,) = report.watchers
    assert isinstance(counters, Counters)
    traffic = counters.counts.traffic
    assert traffic["global", "read"].bytes == traffic["global", "write"].bytes == 4 * 512
    assert traffic["global", "read"].requests == 4


def test_what_nobody_has_written() -> None:
    replicas = [np.zeros(128, np.float32) for _ in range(4)]
    (finding,) = launched(ALL_REDUCE, replicas, watchers=[UninitialisedReads], is_initialized=False).findings
    assert finding.kind == "uninitialised read" and "'array 0'" in str(finding)
    body = f"{OWN} multimem.st.v4.f32 [%rd10], {{%f1, %f2, %f3, %f4}}; {ALL_REDUCE}"
    report = launched(body, replicas, [replicas[0].copy()], watchers=[UninitialisedReads], is_initialized=False)
    assert not report.findings


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "ld.global.u32 %r5, [%rd1+8];",
            "byte 8 of 'everywhere', a multicast window .512 bytes. .* for multimem alone",
        ),
        ("st.u32 [%rd1], %r5;", "byte 0 of 'everywhere', a multicast window"),
        ("atom.global.add.u32 %r5, [%rd1], 1;", "byte 0 of 'everywhere', a multicast window"),
        (
            "multimem.ld_reduce.add.u32 %r5, [%rd2];",
            "byte 0 of 'array 0' .512 bytes., are not within a multicast window",
        ),
        ("multimem.st.u32 [%rd3+4], %r5;", "byte 4 of 'array 1' .*multimem.st.u32"),
        ("multimem.red.add.u32 [%rd4], %r5;", "byte 0 of 'array 2' .*multimem.red"),
        ("multimem.st.u32 [%rd1+512], %r5;", "0 bytes past the end of 'everywhere'"),
        ("multimem.st.u64 [%rd1+-8], %rd5;", "are not within a multicast window"),
        ("multimem.ld_reduce.add.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1+8];", "is not a multiple of 16 bytes"),
    ],
)
def test_misuse(body: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        launched(body, [np.zeros(128, np.float32) for _ in range(4)])


def test_windows_that_cannot_be() -> None:
    arrays = [np.zeros(64, np.uint8) for _ in range(2)]
    memory, places = GlobalMemory(), [one.ctypes.data for one in arrays]
    for i, one in enumerate(arrays):
        memory.add_array(one, f"array {i}")
    for address, size, replicas, message in [
        (WINDOW, 0, places, "has 0 bytes"),
        (WINDOW, 64, [], "has no replica"),
        (WINDOW, 65, places, "65 bytes at byte 0 of 'array 0' .64 bytes., are not within an allocation"),
        (WINDOW, 32, [places[0], places[0] + 16], "overlap"),
        (WINDOW + 8, 32, places, "is not aligned as"),
        (places[0] + 32, 64, places, "overlaps 'array 0'"),
    ]:
        with pytest.raises(ValueError, match=message):
            memory.add_multicast(address, size, replicas, "window")
    memory.add_multicast(WINDOW, 64, places, "window")
    with pytest.raises(ValueError, match="overlaps 'window'"):
        memory.add_multicast(WINDOW + 32, 64, places, "another")
    with pytest.raises(ValueError, match="'array 0' is a replica of multicast window 'window'"):
        memory.remove(places[0])
    memory.remove(WINDOW)
    memory.remove(places[0])
    assert [one.name for one in memory] == ["array 1"]
    with pytest.raises(KeyError):
        memory.remove(WINDOW)
