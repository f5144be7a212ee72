"""What the judge of each product for few rows would see: a fault that a kernel may have, planted into the reference's
own arithmetic; and what it lets pass, which is another order of the sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from parity.cases import twin_named
from parity.harness import call_of
from parity.judge import expectations, judge
from parity.twin import Call
from reference.formats import Array
from reference.kernels.activation import gated_activation
from reference.kernels.vocabulary_head import log_sum_exp

Wrong = Callable[[Call], Array]
CHUNK = 64
ODD: dict[str, dict[str, Any]] = {  # sizes at which every fault has something to spoil
    "linear": {"tokens": 9, "in_features": 840, "adds": "both"},
    "gated_linear": {"tokens": 9, "in_features": 840},
    "vocabulary_head": {"tokens": 9, "in_features": 840},
    "grouped_linear": {"in_features": 840},
    "grouped_gated_linear": {"tokens": 6, "in_features": 840},
    "routed_linear": {"tokens": 9, "in_features": 840, "residual": True},
    "routed_gated_linear": {"tokens": 9, "in_features": 840},
}


def rounded(array: Array) -> Array:
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def cut(array: Array) -> Array:
    """Rounded towards zero."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)


def product(x: Array, weight: Array, *, lost: bool = False) -> Array:
    """x W^T of float32, added up in chunks, from the last to the first; lost: but the last."""
    total: Any = np.float32(0)
    starts = [*range(0, x.shape[-1], CHUNK)]
    for k in reversed(starts[:-1] if lost else starts):
        part = x[..., k : k + CHUNK], weight[..., k : k + CHUNK]
        total = total + np.einsum("...k,...nk->...n", *part, dtype=np.float32)
    return total


def wide(call: Call) -> dict[str, Array]:
    return {
        name: array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array
        for name, array in call.arrays.items()
    }


def gate(both: Array) -> Array:
    half = both.shape[-1] // 2
    return gated_activation(both[..., :half], both[..., half:], kind="silu")


def linear(spoil: Callable[[Array, Array, Array], Array], **how: Any) -> Wrong:
    def function(call: Call) -> Array:
        of = wide(call)
        return spoil(product(of["x"], of["weight"], **how), of["bias"], of["residual"])

    return function


def normed(spoil: Callable[..., Array]) -> Wrong:
    """linear with a norm: spoil(x, its factors, the norm's weight, the weight, bias + residual)."""

    def function(call: Call) -> Array:
        of = wide(call)
        factor = 1 / np.sqrt(np.mean(of["x"] ** 2, axis=-1, keepdims=True) + call.constants["eps"])
        return spoil(of["x"], factor, of["norm_weight"], of["weight"], of["bias"] + of["residual"])

    return function


def gated(spoil: Callable[[Array], Array], **how: Any) -> Wrong:
    return lambda call: spoil(product(wide(call)["x"], wide(call)["weight"], **how))


def head(spoil: Callable[[Array], Array], **how: Any) -> Wrong:
    return gated(spoil, **how)


def grouped(spoil: Callable[[Array], Array], *, shift: int = 0, written: int = 0, **how: Any) -> Wrong:
    """shift: of the first row of each expert but the first, as if it were the expert's before it. written: rows beyond
    the last expert's."""

    def function(call: Call) -> Array:
        of = wide(call)
        x = of["x"] if "src_token" not in of else of["x"][np.maximum(of["src_token"], 0)]
        result, offsets = of["out"].copy(), of["expert_offsets"]
        for expert in np.flatnonzero(np.diff(offsets)):
            rows = slice(offsets[expert] + (shift if expert else 0), offsets[expert + 1] + shift)
            result[rows] = spoil(product(x[rows], of["weight"][expert], **how))
        result[offsets[-1] + written :] = of["out"][offsets[-1] + written :]
        return result

    return function


def routed(spoil: Callable[[Array, Array, Array], Array], **how: Any) -> Wrong:
    """routed_linear: spoil(results [T, K, N], expert weights [T, K, 1], residual)."""

    def function(call: Call) -> Array:
        of = wide(call)
        results = product(of["x"], of["weight"][of["expert_ids"]], **how)
        return spoil(results, of["expert_weights"][..., None], of["residual"])

    return function


def routed_gated(spoil: Callable[[Array], Array], **how: Any) -> Wrong:
    def function(call: Call) -> Array:
        of = wide(call)
        return spoil(product(of["x"][:, None], of["weight"][of["expert_ids"]], **how))

    return function


def added(total: Array, bias: Array, residual: Array) -> Array:
    return total + bias + residual


def summed(results: Array, factors: Array, residual: Array) -> Array:
    return (results * factors).sum(axis=1, dtype=np.float32) + residual


def both_rounded(both: Array) -> Array:
    return gate(rounded(both))


RIGHT: list[tuple[str, dict[str, Any], Wrong]] = [
    ("linear", {}, linear(added)),
    ("linear", {"norm": True}, normed(lambda x, f, n, w, more: product(rounded(x * n), w) * f + more)),
    ("gated_linear", {}, gated(gate)),
    ("vocabulary_head", {"gives": ["logits"]}, head(lambda logits: logits)),
    ("grouped_linear", {}, grouped(lambda total: total)),
    ("grouped_gated_linear", {}, grouped(gate)),
    ("routed_linear", {}, routed(summed)),
    ("routed_gated_linear", {}, routed_gated(gate)),
]
FAULTS: dict[str, tuple[str, dict[str, Any], Wrong]] = {
    "a lost chunk": ("linear", {}, linear(added, lost=True)),
    "no bias": ("linear", {}, linear(lambda total, bias, residual: total + residual)),
    "the next channel's bias": ("linear", {}, linear(lambda total, bias, rest: added(total, np.roll(bias, 1), rest))),
    "no residual": ("linear", {}, linear(lambda total, bias, residual: total + bias)),
    "the next row's residual": ("linear", {}, linear(lambda *of: added(*of[:2], np.roll(of[2], 1, axis=0)))),
    "a product that is rounded": ("linear", {}, linear(lambda total, *more: added(rounded(total), *more))),
    "a residual that is added to what is rounded": (
        "linear",
        {},
        linear(lambda total, bias, residual: rounded(total + bias) + residual),
    ),
    "a result that is cut": ("linear", {}, linear(lambda *of: cut(added(*of)))),
    "a norm that rounds nothing": (
        "linear",
        {"norm": True},
        normed(lambda x, f, n, w, more: product(x * n, w) * f + more),
    ),
    "a norm that rounds as rms_norm does": (
        "linear",
        {"norm": True},
        normed(lambda x, f, n, w, more: product(rounded(x * f * n), w) + more),
    ),
    "a norm without weight": (
        "linear",
        {"norm": True},
        normed(lambda x, f, n, w, more: product(rounded(x), w) * f + more),
    ),
    "gate and up that are rounded": ("gated_linear", {}, gated(both_rounded)),
    "gate and up that are exchanged": ("gated_linear", {}, gated(lambda both: gate(np.roll(both, 40, axis=-1)))),
    "a gate that lost a chunk": ("gated_linear", {}, gated(gate, lost=True)),
    "logits that are rounded": ("vocabulary_head", {"gives": ["logits"]}, head(rounded)),
    "logits that lost a chunk": ("vocabulary_head", {"gives": ["logits"]}, head(lambda one: one, lost=True)),
    "a sum without the last id": (
        "vocabulary_head",
        {"gives": ["log_sum_exp"]},
        head(lambda logits: log_sum_exp(logits[:, :-1])),
    ),
    "the expert before": ("grouped_linear", {}, grouped(lambda total: total, shift=1)),
    "an expert's lost chunk": ("grouped_linear", {}, grouped(lambda total: total, lost=True)),
    "a row that is nobody's": ("grouped_linear", {}, grouped(lambda total: total, shift=1, written=1)),
    "experts' gate and up that are rounded": ("grouped_gated_linear", {}, grouped(both_rounded)),
    "the weight of the next expert": (
        "routed_linear",
        {},
        routed(lambda r, f, more: summed(r, np.roll(f, 1, 1), more)),
    ),
    "a forgotten expert": ("routed_linear", {}, routed(lambda r, f, more: summed(r[:, :-1], f[:, :-1], more))),
    "an expert's result that is rounded": ("routed_linear", {}, routed(lambda r, *more: summed(rounded(r), *more))),
    "a residual after rounding": (
        "routed_linear",
        {},
        routed(lambda r, f, more: rounded(summed(r, f, 0 * more)) + more),
    ),
    "a pair's gate and up that are rounded": ("routed_gated_linear", {}, routed_gated(both_rounded)),
}


def judged(name: str, change: dict[str, Any], function: Wrong) -> Iterator[bool]:
    """Of a few calls, is each right?"""
    twin = twin_named(name)
    config = {**next(iter(twin.corners())), **ODD[name], **change}
    for number in range(3):
        call = call_of(twin, config, number)
        expected = expectations(twin, call)
        asked = change.get("gives", [expected[0].name])
        [one] = [one for one in expected if one.name in asked]
        with np.errstate(all="ignore"):
            yield judge(one, function(call).astype(one.like.dtype)).ok


@pytest.mark.parametrize(("name", "change", "function"), RIGHT)
def test_another_order_of_the_sum_passes(name: str, change: dict[str, Any], function: Wrong) -> None:
    assert all(judged(name, change, function))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(fault: str) -> None:
    assert not any(judged(*FAULTS[fault]))
