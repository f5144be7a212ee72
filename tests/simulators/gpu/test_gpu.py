"""What a GPU keeps between launches, and what it counts."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from simulators.gpu.checks.counters import Counters
from simulators.gpu.checks.races import Races
from simulators.gpu.chip import H200
from simulators.gpu.errors import SimulatorError, UnsupportedInstruction
from simulators.gpu.gpu import Gpu
from simulators.gpu.launch import Launch
from simulators.gpu.ptx.parser import parse
from tests.simulators.gpu.launching import kernel, run


def test_a_module_that_cannot_be_run_keeps_its_variables_to_itself() -> None:
    """Another module must not come by its id, under which its variables are known."""
    text = kernel("tex.unknown %r1, %r1;", 0).replace(".visible", ".global .align 4 .u32 a = 5;\n.visible")
    gpu, module = Gpu(H200), parse(text)
    with pytest.raises(UnsupportedInstruction):
        gpu.launch(module, Launch("k", (1, 1, 1), (1, 1, 1), b""))
    kept = weakref.ref(module)
    del module
    gc.collect()
    assert kept() is not None


def test_an_error_tells_what_was_found_before_it() -> None:
    """A race is often why."""
    trap = "{}\nbar.sync 0;\ntrap;"
    out = np.zeros(1, np.uint32)
    with pytest.raises(SimulatorError) as raced:
        run(kernel(trap.format("st.global.u32 [%rd1], %r1;"), 1), [out], watchers=[Races])
    with pytest.raises(SimulatorError) as alone:
        run(kernel(trap.format(""), 1), [out], watchers=[Races])
    assert "found before that:\nrace: " in str(raced.value) and "found before" not in str(alone.value)


def test_every_instruction_is_counted() -> None:
    body = """
shfl.sync.bfly.b32 %r5, %r1, 1, 31, -1;
bar.sync 0;
setp.eq.u32 %p1, %r1, 0;
@%p1 bra END;
vote.sync.ballot.b32 %r5, 1, 0xFFFFFFFE;
END:
"""
    report = run(kernel(body, 0), [], watchers=[Counters])
    (counters,) = report.watchers
    assert isinstance(counters, Counters)
    counts = counters.counts.thread_instructions
    assert sum(counts.values()) == report.thread_instructions == 2 * 32 + 4 * 32 + 31 + 32
    assert counts["bar"] == counts["shfl"] == counts["bra"] == counts["ret"] == 32 and counts["vote"] == 31


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize(
    ("form", "left"),
    [
        ("add.u32", sum(range(256)) & 0xFFFFFFFF),
        ("min.s32", -200 & 0xFFFFFFFF),
        ("max.u32", -1 & 0xFFFFFFFF),
        ("max.s32", 55),
        ("and.b32", 0),
        ("or.b32", 0xFFFFFFFF),
        ("xor.b32", 0),
    ],
)
def test_reductions_of_all_threads_at_one_place(form: str, left: int, seed: int | None) -> None:
    """Of the numbers from -200 to 55, and of 0 that is there; the sum is that of 0 to 255."""
    shift = 0 if form == "add.u32" else 200
    out = np.zeros(1, np.uint32)
    body = f"sub.u32 %r5, %r1, {shift};\nred.global.{form} [%rd1], %r5;"
    run(kernel(body, 1), [out], block=256, gpu=Gpu(H200, seed=seed))
    assert int(out[0]) == left
