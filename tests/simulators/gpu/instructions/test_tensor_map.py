"""Tensor maps: as the driver and as CuTeDSL's host code write them, and as kernels change them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.gpu.errors import SimulatorError
from simulators.gpu.memory.tensor_map import ELEMENTS, READ, SIZE, TensorMap, TensorMapError, decode, encode, replaced
from tests.simulators.gpu.instructions.boxes import aligned
from tests.simulators.gpu.launching import kernel, run

DRIVER_MAPS = json.loads(Path(__file__).with_name("driver_maps.json").read_text())
PLAIN = TensorMap(0x7F0000000000, "bf16", (100, 60), (256,), (64, 8), (1, 1), 128)


def as_map(arguments: dict[str, Any]) -> TensorMap:
    fields: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in arguments.items()}
    return TensorMap(**fields)


@pytest.mark.parametrize("number", range(len(DRIVER_MAPS)))
def test_the_drivers_bytes(number: int) -> None:
    arguments = dict(DRIVER_MAPS[number])
    data = bytes.fromhex(arguments.pop("bytes"))
    assert decode(data) == as_map(arguments)
    assert encode(as_map(arguments))[:READ] == data


# 32-bit words 2 to 14 as the host code of CuTeDSL 4.8.1 wrote them, for sm_90a and sm_100a alike.
CUTEDSL_WORDS = [
    ("46512 10 0 0 0 0 63 3b 0 0 0 3f000000 7", replace(PLAIN, l2_promotion=2)),
    ("42512 10 0 0 0 0 63 3b 0 0 0 f000000 7", replace(PLAIN, box=(16, 8), swizzle=32, l2_promotion=2)),
    ("50392 80 0 0 0 0 7f 3b 0 0 0 1f000000 7", ("f32", (128, 60), (2048,), (32, 8), {"rounds_to_tf32": True})),
    ("240492 100 0 0 0 0 7f 3b 0 0 0 1f000000 7", ("f64", (128, 60), (4096,), (32, 8), {})),
    (
        "c6392 20 0 0 0 0 63 3b 0 0 0 1f000000 7",
        ("f32", (100, 60), (512,), (32, 8), {"swizzle": 128, "swizzle_atom": 32}),
    ),
    (
        "40542 2 c 3c f0 0 f 5 4 3 2 f000000 30201",
        ("bf16", (16, 6, 5, 4, 3), (32, 192, 960, 3840), (16, 2, 3, 4, 1), {}),
    ),
    ("40502 0 0 0 0 0 ff 0 0 0 0 3f000000 0", ("bf16", (256,), (), (64,), {})),
]


@pytest.mark.parametrize(("words", "meaning"), CUTEDSL_WORDS)
def test_the_bytes_of_cutedsl(words: str, meaning: Any) -> None:
    if isinstance(meaning, tuple):
        element, shape, strides, box, others = meaning
        steps = (1,) * len(shape)
        meaning = TensorMap(PLAIN.address, element, shape, strides, box, steps, l2_promotion=2, **others)
    numbers = [PLAIN.address & 0xFFFFFFFF, PLAIN.address >> 32, *(int(word, 16) for word in words.split()), 0]
    assert decode(np.array(numbers, np.uint32).tobytes()) == meaning


@st.composite
def tensor_maps(draw: st.DrawFn) -> TensorMap:
    rank = draw(st.integers(1, 5))
    element, item = draw(st.sampled_from(ELEMENTS))
    swizzle = draw(st.sampled_from((0, 32, 64, 128)))
    row = draw(st.sampled_from([n for n in (16, 32, 64, 128) if n <= (swizzle or 128)]))
    lengths = st.lists(st.integers(1, 1 << 32), min_size=rank, max_size=rank)
    return TensorMap(
        16 * draw(st.integers(0, (1 << 60) - 1)),
        element,
        tuple(draw(lengths)),
        tuple(16 * draw(st.integers(0, (1 << 36) - 1)) for _ in range(rank - 1)),
        (row // item, *(draw(st.integers(1, 256)) for _ in range(rank - 1))),
        tuple(draw(st.integers(1, 8)) for _ in range(rank)),
        swizzle,
        element[0] in "fb" and draw(st.booleans()),
        element.startswith("f32") and draw(st.booleans()),
        swizzle_atom=draw(st.sampled_from((16, 32))) if swizzle == 128 else 16,
        l2_promotion=draw(st.integers(0, 3)),
    )


@given(tensor_maps())
def test_round_trip(tensor_map: TensorMap) -> None:
    data = encode(tensor_map)
    assert len(data) == SIZE and decode(data) == tensor_map


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"address": 8}, "multiple of 16"),
        ({"strides": (24,)}, "strides"),
        ({"box": (257, 1)}, "box"),
        ({"box": (128, 8)}, "more than the 128"),
        ({"box": (3, 8), "swizzle": 0}, "no multiple of 16"),
        ({"element": "s32", "fills_nan": True, "box": (4, 8)}, "cannot be NaN"),
        ({"shape": (100,)}, "dimensions"),
        ({"swizzle": 96}, "swizzle"),
    ],
)
def test_what_the_driver_refuses(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TensorMapError, match=message):
        encode(replace(PLAIN, **change))


def test_other_kinds_of_maps_are_refused() -> None:
    data = bytearray(encode(PLAIN))
    data[8] |= 1
    with pytest.raises(TensorMapError, match="im2col"):
        decode(bytes(data))
    with pytest.raises(TensorMapError, match="of type 15"):
        decode(replaced(encode(PLAIN), "elemtype", 0, 15))


# By field: the value that is given, and the map that it means, as an H200 changed one.
REPLACED = [
    ("global_address", "b64", "", 0x123456789000, {"address": 0x123456789000}),
    ("box_dim", "b32", "0, ", 16, {"box": (16, 8)}),
    ("box_dim", "b32", "1, ", 7, {"box": (64, 7)}),
    ("global_dim", "b32", "1, ", 77, {"shape": (100, 77)}),
    ("global_stride", "b64", "0, ", 0x3456789A00, {"strides": (0x3456789A00,)}),
    ("element_stride", "b32", "1, ", 3, {"element_strides": (1, 3)}),
    ("elemtype", "b32", "", 6, {"element": "f16"}),
    ("elemtype", "b32", "", 11, {"element": "f32", "rounds_to_tf32": True, "box": (32, 8)}),
    ("swizzle_mode", "b32", "", 0, {"swizzle": 0}),
    ("fill_mode", "b32", "", 1, {"fills_nan": True}),
    ("rank", "b32", "", 0, {"shape": (100,), "strides": (), "box": (64,), "element_strides": (1,)}),
]


@pytest.mark.parametrize(("field", "bits", "dimension", "value", "change"), REPLACED, ids=str)
@pytest.mark.parametrize("space", ["global", "shared::cta"])
def test_replace(field: str, bits: str, dimension: str, value: int, change: dict[str, Any], space: str) -> None:
    tensor_map = replace(PLAIN, box=change["box"]) if field == "elemtype" and "box" in change else PLAIN
    register = {"b64": "%rd9", "b32": "%r9"}[bits]
    where = "%rd2" if space == "global" else "%rd3"
    text = kernel(
        f"""
        mov.{bits} {register}, {value};
        setp.ne.s32 %p1, %r1, 0;
        mov.u64 %rd3, copy;
        mul.wide.u32 %rd4, %r1, 4;
        add.s64 %rd5, %rd1, %rd4;
        add.s64 %rd6, %rd2, %rd4;
        ld.global.u32 %r3, [%rd5];
        st.global.u32 [%rd6], %r3;
        cvt.u32.u64 %r4, %rd3;
        cvt.u32.u64 %r5, %rd4;
        add.s32 %r4, %r4, %r5;
        st.shared.u32 [%r4], %r3;
        bar.sync 0;
        @%p1 bra DONE;
        tensormap.replace.tile.{field}.{space}.b1024.{bits} [{where}], {dimension}{register};
        DONE:
        bar.sync 0;
        {"" if space == "global" else CP_FENCEPROXY}
        """,
        2,
        ".shared .align 128 .b8 copy[128];",
    )
    before, after = aligned(np.frombuffer(encode(tensor_map), np.uint8)), aligned(np.zeros(SIZE, np.uint8))
    run(text, [before, after])
    assert decode(after.tobytes()) == replace(tensor_map, **change)


CP_FENCEPROXY = (
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd2], [%rd3], 128;\n"
    "fence.proxy.tensormap::generic.acquire.gpu [%rd2], 128;"
)


def test_a_value_that_does_not_fit() -> None:
    text = kernel("mov.b32 %r9, 9; tensormap.replace.tile.element_stride.global.b1024.b32 [%rd1], 0, %r9;", 1)
    with pytest.raises(SimulatorError, match="element_stride cannot be 9"):
        run(text, [aligned(np.frombuffer(encode(PLAIN), np.uint8))], block=1)
