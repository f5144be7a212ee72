"""Every twin's case file: what it declares is there, can be tried, and can fail."""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from parity.cases import names, twin_named
from parity.harness import configurations, seed_of
from parity.judge import Expectation, expectations, judge
from parity.twin import Call, Config
from reference.formats import Array

TWINS = pytest.mark.parametrize("name", names())
SMALL = 1 << 17  # elements of all arrays of a call: what the reference goes through at once
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


@TWINS
def test_bytes_are_counted_for_every_corner(name: str) -> None:
    twin = twin_named(name)
    assert twin.bytes_moved is not None
    for config in corners(name):
        count = twin.bytes_moved(config)
        assert isinstance(count, int) and count >= 0
