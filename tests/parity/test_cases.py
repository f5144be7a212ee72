"""Every twin's case file: what it declares is there, can be tried, and can fail."""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.cases import names, twin_named
from parity.harness import call_of, configurations, seed_of
from parity.judge import Expectation, expectations, in_dtype, judge
from parity.twin import Call, Config
from reference.formats import Array

TWINS = pytest.mark.parametrize("name", names())
SMALL = 1 << 18  # elements of all arrays of a call: what the reference goes through at once
TRIED = 16  # corners of a twin, spread over all


@cache
def corners(name: str) -> list[Config]:
    return list(twin_named(name).corners())


def inputs(name: str, config: Config) -> Call:
    return twin_named(name).inputs(config, np.random.default_rng(seed_of(config)))


def size(call: Call) -> int:
    return sum(array.size for array in call.arrays.values())


@cache
def tried(name: str) -> list[tuple[str, Call, list[Expectation]]]:
    """Some corners that are small, and what they must give."""
    spread = corners(name)[:: -(-len(corners(name)) // TRIED)]
    calls = ((json.dumps(config), inputs(name, config)) for config in spread)
    return [(config, call, expectations(twin_named(name), call)) for config, call in calls if size(call) <= SMALL]


def test_there_are_twins_and_an_unknown_one_is_told_of() -> None:
    assert "rms_norm" in names()
    with pytest.raises(ValueError, match=r"unknown twin 'rms'; known are .*rms_norm"):
        twin_named("rms")


@TWINS
def test_a_twin_is_named_after_its_files(name: str) -> None:
    twin = twin_named(name)
    assert twin.name == name
    assert len({output.name for output in twin.outputs}) == len(twin.outputs) > 0
    for panel, function in (("reference", twin.reference), ("optimized", twin.optimized)):
        module, _, attribute = function.partition(":")
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None, f"there is no {panel} {module}"
        assert f"def {attribute}(" in Path(spec.origin).read_text(encoding="utf-8")


@TWINS
def test_corners_are_what_json_holds(name: str) -> None:
    texts = [json.dumps(config, sort_keys=True) for config in corners(name)]
    assert [json.loads(text) for text in texts] == corners(name)
    assert len(set(texts)) > 3


@TWINS
def test_inputs_repeat_themselves(name: str) -> None:
    for config in corners(name)[:6]:
        first, second = inputs(name, config), inputs(name, config)
        assert list(first.arrays) == list(second.arrays)
        assert (first.constants, first.repeated) == (second.constants, second.repeated)
        for one, other in zip(first.arrays.values(), second.arrays.values(), strict=True):
            assert (one.shape, one.dtype, one.strides) == (other.shape, other.dtype, other.strides)
            assert np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


@TWINS
def test_what_is_searched_has_the_parts_of_a_corner(name: str) -> None:
    twin = twin_named(name)
    known = {key for config in corners(name) for key in config}
    needed = set.intersection(*(set(config) for config in corners(name)))
    for config in list(configurations(twin, 8))[len(corners(name)) :]:
        assert json.loads(json.dumps(config)) == config
        assert needed <= config.keys() <= known
        inputs(name, config)


@TWINS
def test_the_reference_takes_the_corners(name: str) -> None:
    outputs = twin_named(name).outputs
    assert tried(name), "no corner is small"
    for config, call, expected in tried(name):
        assert len(expected) == len(outputs), config
        for output, one in zip(outputs, expected, strict=True):
            assert judge(one, one.like).ok, config
            if output.in_place is not None:
                overwritten = call.arrays[output.in_place]
                assert (one.like.shape, one.like.dtype) == (overwritten.shape, overwritten.dtype), config


@TWINS
def test_continuous_outputs_are_of_order_one(name: str) -> None:
    """Inputs so small that any answer is near enough are not a test."""
    seen = set()
    for config, _, expected in tried(name):
        for one in expected:
            values = np.abs(one.like.astype(np.float64)) if one.exact is None else np.zeros(0)
            values = values[np.isfinite(values) & (values > 0)]
            if values.size:
                seen.add(one.name)
                assert 1e-3 < np.sqrt(np.mean(values * values)) < 1e4, (config, one.name)
    assert seen == {output.name for output in twin_named(name).outputs if not output.exact}


def spoilt(one: Expectation, how: str) -> Array:
    if how == "zeroed":
        return np.zeros_like(one.like)
    return np.frombuffer(b"\xff" * one.like.nbytes, one.like.dtype).reshape(one.like.shape)


@TWINS
@pytest.mark.parametrize("how", ["zeroed", "unwritten"])
def test_each_output_can_fail(name: str, how: str) -> None:
    """What holds nothing but zeros, or poison, may be right for one input; not for most."""
    caught: dict[str, list[bool]] = {output.name: [] for output in twin_named(name).outputs}
    for _, _, expected in tried(name):
        for one in expected:
            if one.like.size:
                caught[one.name].append(not judge(one, spoilt(one, how)).ok)
    for output, results in caught.items():
        assert np.mean(results) > 0.7, f"{output} passes in {results.count(False)} of {len(results)} cases"


def parts(shape: tuple[int, ...]) -> dict[str, Any]:
    """Indices of parts that a kernel may treat apart from the rest."""
    found: dict[str, Any] = {"last row": np.s_[-1:], "last row of six": np.s_[5::6]}
    if len(shape) > 1:
        found |= {
            "last channels": np.s_[..., -max(1, shape[-1] // 16) :],
            "a lane of 16": np.s_[..., 5 % shape[-1] :: 16],
        }
    if len(shape) > 2:
        found["last head"] = np.s_[:, -1]
    return found


def neighbours(values: Array) -> Array:
    """As a result that is truncated, or rounded once too often: of every third element the next number."""
    bits = values.view(f"u{values.dtype.itemsize}").copy()
    bits.reshape(-1)[::3] += 1
    return bits.view(values.dtype)


def somewhat_off(values: Array) -> Array:
    """As a formula that is slightly another."""
    return (values.astype(np.float64) * (1 + 2.0**-14)).astype(values.dtype)


def a_little_added(values: Array) -> Array:
    """As if one term more were in each sum: what is left of the rounding of terms is smaller."""
    wide = values.astype(np.float64)
    return (wide + np.sqrt(np.nanmean(wide * wide, axis=-1, keepdims=True)) / 16).astype(values.dtype)


def changed(one: Expectation) -> Array:
    """Elements that a fault would show in: what the operation writes, and no zeros and NaN, nor what is small in its
    row."""
    values = np.abs(np.nan_to_num(one.like.astype(np.float64), posinf=0, neginf=0))
    can_tell = values > np.sqrt(np.mean(values * values, axis=-1, keepdims=True)) / 8
    if one.before is not None:
        bits = np.dtype(f"u{one.like.dtype.itemsize}")
        can_tell &= one.like.view(bits) != np.ascontiguousarray(one.before).view(bits)
    return can_tell


def is_enough(can_tell: Array, part: str) -> bool:
    """Of a few elements, few may differ in any way: see `FEW_DIFFERING`."""
    of_channels = can_tell.sum(axis=tuple(range(can_tell.ndim - 1)))
    return bool(of_channels.max() >= 12) if "channel" in part or "lane" in part else bool(of_channels.sum() >= 24)


@TWINS
def test_a_part_of_each_output_can_fail(name: str) -> None:
    """A fault in one row, one head, or some channels alone is told of, wherever there are enough elements to tell."""
    missed, seen = [], 0
    for config, _, expected in tried(name):
        for one in expected:
            for part, index in parts(one.like.shape).items() if one.like.size else ():
                if one.exact is not None:
                    spoil, can_tell = neighbours, np.ones(one.like.shape, bool)
                    if one.any_nan:
                        can_tell = ~np.isnan(one.like)
                else:
                    spoil, can_tell = neighbours if one.like.dtype.itemsize <= 2 else somewhat_off, changed(one)
                    spoil = a_little_added if one.rounds_terms else spoil
                    if not is_enough(can_tell[index], part):
                        continue
                if can_tell[index].any():
                    actual = one.like.copy()
                    spoilt_part = spoil(np.ascontiguousarray(actual[index]))
                    actual[index] = np.where(can_tell[index], spoilt_part, actual[index])
                    seen += 1
                    if judge(one, actual).ok:
                        missed.append((one.name, part, config))
    assert seen >= 5
    assert missed == []


@TWINS
def test_what_is_left_as_it_was_can_fail(name: str) -> None:
    """One bit of a row of an overwritten input that is not the operation's to write."""
    outputs = [number for number, output in enumerate(twin_named(name).outputs) if output.in_place is not None]
    seen = 0
    for config, call, expected in tried(name):
        for number in outputs:
            one, in_place = expected[number], twin_named(name).outputs[number].in_place
            assert in_place is not None
            bits = np.dtype(f"u{one.like.dtype.itemsize}")
            before, after = (np.ascontiguousarray(array).view(bits) for array in (call.arrays[in_place], one.like))
            is_number = np.isfinite(one.like.astype(np.float64)).all(axis=-1)
            left = np.argwhere((before == after).all(axis=-1) & is_number)
            if len(left):
                actual = after.copy()
                actual[(*left[-1], -1)] ^= 1
                seen += 1
                assert not judge(one, actual.view(one.like.dtype)).ok, (config, one.name)
    assert seen or name not in ("kv_write", "kv_block_copy", "qk_norm_rope_kv_write")


VECTORS = ("known_tokens",)  # whose arrays have one number a token, of which no step has 2^31


def test_the_committed_records_have_every_corner() -> None:
    """What a corner gave on a chip is not known before it was tried on one."""
    for file in (Path(__file__).parents[2] / "docs/parity").glob("*.json"):
        records = json.loads(file.read_text(encoding="utf-8"))
        assert all(record["ok"] for record in records)
        assert all(record.get("source") for record in records), "which text was tried"
        known = {(record["twin"], json.dumps(record["config"], sort_keys=True)) for record in records}
        missing = [
            (name, config)
            for name in names()
            for config in corners(name)
            if (name, json.dumps(config, sort_keys=True)) not in known
        ]
        assert missing == [], f"{len(missing)} corners are not in {file.name}: diptych parity --on device --json {file}"


@TWINS
def test_repeated_rows_are_odd_in_number(name: str) -> None:
    """An index that is too small by 2^32 leads to another row, and not to the same one."""
    for config in corners(name):
        if "repeated" in config:
            call = inputs(name, config)
            assert all(len(call.arrays[one]) % 2 == 1 for one in call.repeated), config


@pytest.mark.parametrize("name", [name for name in names() if name not in VECTORS])
def test_some_corner_has_more_elements_than_31_bits_count(name: str) -> None:
    def elements(call: Call, array_name: str) -> int:
        array = call.arrays[array_name]
        lengths = (call.repeated.get(array_name, len(array)), *array.shape[1:])
        pairs = zip(lengths, array.strides, strict=True)
        return sum((length - 1) * stride // array.itemsize for length, stride in pairs)

    large = [config for config in corners(name) if any(_number(value) >= 1 << 17 for value in config.values())]
    calls = [inputs(name, config) for config in large]
    assert any(elements(call, array) >= 2**31 for call in calls for array in call.arrays)


@TWINS
def test_every_array_begins_between_aligned_places_in_some_corner(name: str) -> None:
    """Alone, so that no other's alignment says that of all; and all together."""
    twin = twin_named(name)
    placed = [config for config in corners(name) if "offset" in config]
    calls = [call_of(twin, config) for config in placed]
    wide = [one for one, array in calls[0].arrays.items() if array.ndim > 1 or "weight" in one]
    own = [output.name for output in twin.outputs if output.in_place is None]
    # Kernels of libraries take none that begin between the places of 16 bytes.
    together = {8} if twin.library else {1, 8}
    assert together <= {config["offset"] for config in placed if isinstance(config["offset"], int)}
    alone = {one for call in calls for one in call.offsets if len(call.offsets) == 1}
    assert set(wide) <= alone and (not own or alone & set(own))
    # One number a row has no rows that could lie apart.
    is_apart = any(call_of(twin, config).out_strides for config in corners(name) if "out_stride" in config)
    assert not own or is_apart or name in ("sample_tokens", *VECTORS)


def test_rows_beyond_2_31_elements_are_written_in_each_launch_of_a_dispatch() -> None:
    """In memory of the chip alone: here their rows lie in little."""
    seen = 0
    for config in corners("moe_dispatch"):
        if isinstance(config.get("out_stride"), dict) and config["out_stride"]["rows"] > 1 << 16:
            call = inputs("moe_dispatch", config)
            _, src_token, _, rows = in_dtype(twin_named("moe_dispatch"), call)
            assert size(call) + rows.size < 1 << 22
            assert np.flatnonzero(src_token >= 0)[-1] * config["out_stride"]["rows"] > 2**31
            seen += 1
    assert seen == 3


@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm", "qk_norm", "qk_norm_rope_kv_write"])
def test_parameters_of_a_norm_are_varied(name: str) -> None:
    """What is always 1e-6 could be written into the kernel."""
    calls = [
        inputs(name, config) for config in corners(name) if "repeated" not in config and config.get("gap", 0) < 1 << 20
    ]
    assert len({call.constants["eps"] for call in calls}) > 1
    assert len({call.constants["weight_bias"] for call in calls}) > 1
    first, weight = next(iter(calls[0].arrays)), next(one for one in calls[0].arrays if "weight" in one)
    assert {call.arrays[first].dtype == call.arrays[weight].dtype for call in calls} == {True, False}


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("add_rms_norm", "x", "residual"),
        ("kv_write", "k", "v"),
        ("kv_write", "k_cache", "v_cache"),
        ("qk_norm_rope_kv_write", "k_cache", "v_cache"),
    ],
)
def test_strides_of_two_tensors_differ(name: str, one: str, other: str) -> None:
    """That of one could be used for both."""
    small = [
        config
        for config in corners(name)
        if "repeated" not in config and not any(_number(value) > 1 << 20 for value in config.values())
    ]
    calls = [inputs(name, config).arrays for config in small]
    assert any(arrays[one].strides[0] != arrays[other].strides[0] for arrays in calls if len(arrays[one]) > 1)


def _number(value: object) -> float:
    return value if isinstance(value, (int, float)) else 0


@TWINS
def test_bytes_are_counted_for_every_corner(name: str) -> None:
    twin = twin_named(name)
    assert twin.bytes_moved is not None
    for config in corners(name):
        count = twin.bytes_moved(config)
        assert isinstance(count, int) and count >= 0
