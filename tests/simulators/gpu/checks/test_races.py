"""What is a race, and how it is told: which accesses, of which bytes, by which instructions."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.gpu.checks.races import Races
from tests.simulators.gpu.checks.racing import TILE, races
from tests.simulators.gpu.launching import kernel, run


def test_atomics_do_not_race_with_each_other_but_with_plain_stores() -> None:
    atomic = "red.global.add.u32 [%rd1], 1;"
    assert races(atomic, 1, grid=4, block=64) == []
    assert races("setp.eq.u32 %p1, %r2, 0;\n@%p1 st.global.u32 [%rd1], 5;\n" + atomic, 1, grid=4, block=1)
    assert races(atomic.replace("global", "cta.global").replace("red.", "red.relaxed."), 1, grid=4, block=1)


def test_lanes_that_write_different_values_to_one_place_race() -> None:
    assert races("st.shared.u32 [tile], %r1;", block=32)
    assert races("st.shared.u32 [tile], 5;", block=32) == []


def test_neighbours_of_one_word_do_not_race() -> None:
    body = "mul.wide.u32 %rd3, %r1, 2;\nadd.s64 %rd2, %rd1, %rd3;\ncvt.u16.u32 %rs1, %r1;\nst.global.b16 [%rd2], %rs1;"
    assert races(body, 32, block=64) == []


def test_a_race_is_told_with_the_source_line() -> None:
    body = ".loc 1 42 0\nst.shared.u32 [tile], %r1;\n.loc 1 43 0\nld.shared.u32 %r5, [tile];"
    arrays: list[np.ndarray] = []
    text = kernel(body, 0, TILE).replace(".address_size 64", '.address_size 64\n.file 1 "norm.py"')
    findings = run(text, arrays, block=64, watchers=[Races]).findings
    assert any(finding.place.file == "norm.py" and finding.place.source_line == 43 for finding in findings)
    assert "norm.py:42" in str(findings[-1]) or "norm.py:42" in str(findings[0])


@pytest.mark.parametrize("writer", [0, 31, 100, 255])
def test_a_reader_that_writes_races_with_the_other_readers(writer: int) -> None:
    body = f"ld.shared.u32 %r5, [tile];\nsetp.eq.u32 %p1, %r1, {writer};\n@%p1 st.shared.u32 [tile], 5;"
    assert races(body, block=256)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_the_same_value_may_be_written_at_once_or_in_turn(seed: int | None) -> None:
    body = "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra JOIN;\nmov.b32 %r5, 0;\nJOIN:\nst.shared.u32 [tile], VALUE;"
    assert races(body.replace("VALUE", "1"), block=64, seed=seed) == []
    assert races(body.replace("VALUE", "%r1"), block=64, seed=seed)


def test_places_are_as_small_as_the_smallest_access() -> None:
    barriers = """
    mov.u32 %r5, tile;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 mbarrier.init.shared.b64 [%r5], 1;
    @!%p1 mbarrier.init.shared.b64 [%r5+PLACE], 1;
    """
    assert races(barriers.replace("PLACE", "8"), block=2) == []
    assert races(barriers.replace("PLACE", "0"), block=2)
    halves = """
    mov.b16 %rs1, 0;
    setp.eq.u32 %p1, %r2, 0;
    @%p1 red.relaxed.cta.global.add.noftz.bf16 [%rd1], %rs1;
    @!%p1 red.relaxed.cta.global.add.noftz.bf16 [%rd1+PLACE], %rs1;
    """
    assert races(halves.replace("PLACE", "2"), 2, grid=2, block=1) == []
    assert races(halves.replace("PLACE", "0"), 2, grid=2, block=1)
    # A wide write is remembered in all its parts.
    wide = """
    setp.eq.u32 %p1, %r1, 0;
    @!%p1 bra SECOND;
    st.shared.v4.u32 [tile], {%r1, %r1, %r1, %r1};
    bra OUT;
    SECOND:
    add.u32 %r5, %r1, 1;
    st.shared.b8 [tile+PLACE], %r5;
    OUT:
    """
    assert races(wide.replace("PLACE", "9"), block=2)
    assert races(wide.replace("PLACE", "16"), block=2) == []


def test_instructions_of_one_line_are_told_apart() -> None:
    body = (
        "st.shared.u32 [tile+8], 3; ld.shared.u32 %r5, [tile]; setp.eq.u32 %p1, %r1, 1; @%p1 st.shared.u32 [tile], 1;"
    )
    (race,) = races(body)
    assert "does ld.shared.u32 %r5" in race.message
