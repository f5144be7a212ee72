"""What products for few rows do before the launch before them has ended, by their PTX: programmatic dependent launch.

The simulator runs one launch after another, and would not see a read that comes too early."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from optimized.compile.arch import SM_90A
from optimized.compile.build import build
from optimized.device import CompileOnly, Outline
from optimized.kernels.few_rows import FewRows
from optimized.kernels.grouped_gated_linear import grouped_gated_linear
from optimized.kernels.grouped_linear import grouped_linear
from optimized.kernels.linear import linear
from optimized.kernels.routed_gated_linear import routed_gated_linear
from optimized.kernels.routed_linear import routed_linear
from optimized.kernels.vocabulary_head import vocabulary_head

found: list[Any] = []
device = CompileOnly(SM_90A, lambda kernel, _: found.append(kernel))
WAIT, BEGIN = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"


def of(*shape: int, dtype: str = "bfloat16") -> Outline:
    return Outline(shape, dtype, device)


GATE_UP, DOWN = of(8, 48, 64), of(8, 64, 24)
IDS, WEIGHTS, OFFSETS = of(3, 2, dtype="int32"), of(3, 2, dtype="float32"), of(9, dtype="int32")
EARLY: dict[str, Callable[[], Any]] = {
    "linear": lambda: linear(of(3, 64), of(40, 64), of(40), of(3, 40), norm_weight=of(64), eps=1e-6, pdl=True),
    "vocabulary_head": lambda: vocabulary_head(of(3, 64), of(40, 64), token_ids=True, pdl=True),
    "grouped_linear": lambda: grouped_linear(of(6, 24), DOWN, OFFSETS, pdl=True),
    "routed_linear": lambda: routed_linear(of(3, 2, 24), DOWN, IDS, WEIGHTS, pdl=True),
    "routed_linear of one token": lambda: routed_linear(
        of(1, 2, 24), DOWN, of(1, 2, dtype="int32"), of(1, 2, dtype="float32"), of(1, 64), pdl=True
    ),
}
LATE: dict[str, Callable[[], Any]] = {
    "grouped_gated_linear": lambda: grouped_gated_linear(
        of(3, 64), GATE_UP, OFFSETS, of(6, dtype="int32"), kind="silu", pdl=True
    ),
    "routed_gated_linear": lambda: routed_gated_linear(of(3, 64), GATE_UP, IDS, kind="silu", pdl=True),
}


@cache
def ptx_of(name: str) -> str:
    found.clear()
    ({**EARLY, **LATE}[name])()
    kernel = found[0]
    assert isinstance(kernel, FewRows) and kernel.pdl and kernel.begins_early == (name in EARLY)
    return build(kernel, SM_90A).ptx


def accesses(ptx: str) -> set[str]:
    """Instructions that read or write global memory."""
    return set(
        re.findall(
            r"\b(?:cp\.async\.c[ag]\.shared|ld(?:\.\w+)*\.global|st(?:\.\w+)*\.global|atom(?:\.\w+)*\.global)\b", ptx
        )
    )


@pytest.mark.parametrize("name", EARLY)
def test_what_begins_early_reads_weights_and_what_an_earlier_launch_wrote(name: str) -> None:
    """Weights by cp.async alone; lists of experts past the multiprocessor's own cache."""
    before, waits, after = ptx_of(name).partition(WAIT)
    assert waits and WAIT not in after and before.count(BEGIN) == 1, "the next launch may begin at once"
    fresh = set() if name in ("linear", "vocabulary_head") else {"ld.relaxed.gpu.global"}
    assert accesses(before) == {"cp.async.cg.shared"} | fresh
    assert "st.global" in after


@pytest.mark.parametrize("name", LATE)
def test_what_does_not_begin_early_waits_before_it_lets_the_next_begin(name: str) -> None:
    """So that the one after the next may read, without waiting, what was there before this one."""
    before, waits, after = ptx_of(name).partition(WAIT)
    assert waits and WAIT not in after, "once"
    assert BEGIN not in before and after.count(BEGIN) == 1
    assert accesses(before) == set()


def test_an_access_is_known_where_there_is_one() -> None:
    """The negative control."""
    _, _, after = ptx_of("routed_linear of one token").partition(WAIT)
    assert {"cp.async.cg.shared", "ld.global", "st.global"} <= accesses(after)
