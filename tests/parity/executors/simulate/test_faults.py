"""What is wrong with a kernel is found on the simulated GPU, and told with the line of its source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from optimized.compile.arch import SM_90A, SM_100A, Arch
from optimized.compile.library import Library
from parity.executors.simulate.executor import SimulateExecutor
from parity.harness import try_case
from parity.twin import Call, Config, Output, Twin
from tests.parity.executors.simulate import faulty, faulty_pipeline

SOURCE, PIPELINE = Path(faulty.__file__), Path(faulty_pipeline.__file__)


def inputs(config: Config, random: np.random.Generator) -> Call:
    x = random.integers(0, 1000, (config["rows"], faulty.LENGTH), np.int32)
    return Call({"x": x}, {"fault": config["fault"]})


TWIN = Twin(
    "reverse_rows",
    (Output("out", exact=True),),
    lambda: [{"rows": 3, "fault": fault} for fault in faulty.FAULTS],
    st.just({"rows": 3, "fault": ""}),
    inputs,
    reference="tests.parity.executors.simulate.faulty:reference",
    optimized="tests.parity.executors.simulate.faulty:reverse_rows",
)


def tiles(config: Config, random: np.random.Generator) -> Call:
    shape = config["rows"], faulty_pipeline.TILES, faulty_pipeline.THREADS, faulty_pipeline.VECTOR
    return Call({"x": random.integers(0, 1000, shape, np.int32)}, {"fault": config["fault"]})


RING = Twin(
    "sum_tiles",
    (Output("out", exact=True),),
    lambda: [{"rows": 2, "fault": fault} for fault in faulty_pipeline.FAULTS],
    st.just({"rows": 2, "fault": ""}),
    tiles,
    reference="tests.parity.executors.simulate.faulty_pipeline:reference",
    optimized="tests.parity.executors.simulate.faulty_pipeline:sum_tiles",
)


def line_of(mark: str, source: Path = SOURCE) -> int:
    """Of the source line whose comment has the mark."""
    (number,) = [i for i, line in enumerate(source.read_text().splitlines(), 1) if mark in line.partition("  # ")[2]]
    return number


@pytest.mark.parametrize("arch", [SM_90A, SM_100A])
def test_a_kernel_without_a_fault_holds(arch: Arch, kernels: Library) -> None:
    record = try_case(TWIN, {"rows": 3, "fault": ""}, SimulateExecutor(arch, kernels))
    assert record.ok, record.reason


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no barrier", "race: "),
        ("an unwritten element", "uninitialised read: block (0, 0, 0) thread (122, 0, 0)"),
        ("past the end", "block (2, 0, 0) thread (0, 0, 0): 4 bytes at"),
        ("a wait for nothing", "deadlock: every thread waits"),
    ],
)
def test_faults_are_told_with_their_line(fault: str, message: str, kernels: Library) -> None:
    record = try_case(TWIN, {"rows": 3, "fault": fault}, SimulateExecutor(SM_90A, kernels))
    assert record.status == "fail" and message in (record.reason or ""), record.reason
    assert f"{SOURCE.name}:{line_of(fault)}" in (record.reason or ""), record.reason


def test_blocks_that_cannot_all_be_there_are_refused(kernels: Library) -> None:
    record = try_case(TWIN, {"rows": 3, "fault": "too many blocks"}, SimulateExecutor(SM_90A, kernels))
    assert record.status == "fail"
    assert "3000 blocks wait for each other, and NVIDIA H200 holds 2112 at once" in (record.reason or "")


@pytest.mark.parametrize("arch", [SM_90A, SM_100A])
def test_a_pipeline_without_a_fault_holds(arch: Arch, kernels: Library) -> None:
    record = try_case(RING, {"rows": 2, "fault": ""}, SimulateExecutor(arch, kernels))
    assert record.ok, record.reason


@pytest.mark.parametrize("fault", ["no barrier", "a group too few"])
def test_what_a_pipeline_lacks_is_told_with_its_line(fault: str, kernels: Library) -> None:
    record = try_case(RING, {"rows": 2, "fault": fault}, SimulateExecutor(SM_90A, kernels))
    assert record.status == "fail" and "race: " in (record.reason or "") and "cp.async" in (record.reason or "")
    assert f"{PIPELINE.name}:{line_of(fault, PIPELINE)}" in (record.reason or ""), record.reason
