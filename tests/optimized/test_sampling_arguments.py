"""Host code of sampling refuses tensors that do not fit, and says which, what it is, and what it must be; with rows and
without. Tensors are outlines: nothing is compiled or launched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from optimized.device import Outline
from optimized.kernels.adjust_logits import adjust_logits
from optimized.kernels.row_cluster import longest_row
from optimized.kernels.sample_tokens import sample_tokens
from optimized.kernels.token_log_probs import token_log_probs
from tests.optimized.test_arguments import launched, of, other_shapes

R = 3
BOTH = pytest.mark.parametrize("rows", [0, R])


def calls(rows: int) -> dict[Callable[..., Any], dict[str, Any]]:
    """Arguments by name that each operation takes."""

    def f32(*shape: int) -> Outline:
        return of(*shape, dtype="float32")

    def i32(*shape: int) -> Outline:
        return of(*shape, dtype="int32")

    history = {"history": i32(20), "history_start": i32(rows + 1), "prompt_lens": i32(rows)}
    penalties = {name: f32(rows) for name in ("repetition", "presence", "frequency")}
    wishes = {"temperature": f32(rows), "top_k": i32(rows), "top_p": f32(rows), "min_p": f32(rows)}
    noise = {"seed": of(rows, 2, dtype="uint32"), "position": i32(rows), "sample_index": i32(rows)}
    forbidden = {"banned_ids": i32(rows, 5), "mask": of(2, 4, dtype="uint32"), "mask_row": i32(rows)}
    beside = {"turned": i32(rows, 2), "num_token_ids": 90, "out": i32(rows)}
    outs = f32(rows), i32(rows), i32(rows, 3), f32(rows, 3)
    return {
        adjust_logits: {"logits": f32(rows, 99)}
        | history
        | penalties
        | {"bias_ids": i32(rows, 4), "bias": f32(rows, 4), "out": i32(rows, 2)},
        sample_tokens: {"logits": f32(rows, 99)} | wishes | noise | forbidden | beside,
        token_log_probs: {"logits": f32(rows, 99), "token_ids": i32(rows), "num_top": 3, "out": outs},
    }


TENSORS = [
    (one, name) for one, given in calls(R).items() for name, value in given.items() if isinstance(value, Outline)
]
# Sizes that say themselves how large a tensor is: any that fits the others does.
FREE_SIZES = {"history", "mask", "banned_ids", "logits"}
LENGTHS = "one element more", "no element"


@BOTH
@pytest.mark.parametrize("operation", list(calls(R)))
def test_what_fits_is_sampled_from(operation: Callable[..., Any], rows: int) -> None:
    launched.clear()
    operation(**calls(rows)[operation])
    assert bool(launched) == (rows > 0)


@BOTH
@pytest.mark.parametrize(("operation", "name"), TENSORS)
def test_what_does_not_fit_is_not_sampled_from(operation: Callable[..., Any], name: str, rows: int) -> None:
    given = calls(rows)[operation]
    right = given[name]
    for dtype in {"int64", "float16", "int32", "float32", "uint32"} - {right.dtype}:
        with pytest.raises(TypeError, match=rf"{operation.__name__}: {name} is {dtype} .*; it must be {right.dtype} "):
            operation(**given | {name: of(*right.shape, dtype=dtype)})
    for change, shape in other_shapes(right.shape).items():
        if (
            shape == right.shape
            or (name in FREE_SIZES and change in LENGTHS)
            or (name, change) == ("turned", LENGTHS[1])
        ):
            continue
        # Biases are as many as their ids.
        told = "bias" if name == "bias_ids" and change in LENGTHS else name
        with pytest.raises(ValueError, match=rf"{operation.__name__}: {told} is \w+ .*; it must be "):
            operation(**given | {name: of(*shape, dtype=right.dtype)})
    if right.shape[0] == rows:
        with pytest.raises(ValueError, match=rf"{operation.__name__}: "):
            operation(**given | {name: of(rows + 1, *right.shape[1:], dtype=right.dtype)})


def test_rows_that_shared_memory_has_no_room_for() -> None:
    length = longest_row() + 1
    for operation, given in calls(R).items():
        with pytest.raises(ValueError, match=rf"{operation.__name__}: a row has {length} logits; at most {length - 1}"):
            operation(**given | {"logits": of(R, length, dtype="float32")})


def test_adjusted_rows_do_not_overlap() -> None:
    given = calls(R)[adjust_logits]
    with pytest.raises(ValueError, match="adjust_logits: rows of logits have 99 elements and begin 98 apart"):
        adjust_logits(**given | {"logits": of(R, 99, dtype="float32", strides=(98, 1))})


@BOTH
@pytest.mark.parametrize(
    ("operation", "wrong", "message"),
    [
        (sample_tokens, {"num_token_ids": 0}, "num_token_ids is 0; it must be 1 to 99"),
        (sample_tokens, {"num_token_ids": 100}, "num_token_ids is 100; it must be 1 to 99"),
        (sample_tokens, {"limits": "some"}, "limits is 'some'; it must be one of none, few, any"),
        (token_log_probs, {"num_top": -1}, "num_top is -1; it must be 0 to 64"),
        (token_log_probs, {"num_top": 65}, "num_top is 65; it must be 0 to 64"),
    ],
)
def test_numbers_that_do_not_fit_are_not_sampled_by(
    operation: Callable[..., Any], wrong: dict[str, Any], message: str, rows: int
) -> None:
    with pytest.raises(ValueError, match=f"{operation.__name__}: {message}"):
        operation(**calls(rows)[operation] | wrong)


def test_each_output_of_log_probabilities_has_its_size() -> None:
    given = calls(R)[token_log_probs]
    for number in range(4):
        outs = list(given["out"])
        outs[number] = of(*(size + 1 for size in outs[number].shape), dtype=outs[number].dtype)
        with pytest.raises(ValueError, match=rf"token_log_probs: out\[{number}\] is "):
            token_log_probs(**given | {"out": tuple(outs)})


def test_kernels_of_sampling_hold_no_more_than_is_asked_for() -> None:
    given = calls(R)[sample_tokens]
    plain = given | {
        "banned_ids": of(R, 0, dtype="int32"),
        "mask": of(0, 4, dtype="uint32"),
        "turned": of(R, 0, dtype="int32"),
    }
    first, others = ["SampleParts", "SampleChoice"], ["SampleMasses", "SampleSearch"]
    for more, names in (({}, first + others), ({"limits": "few"}, first), ({"limits": "none"}, first)):
        launched.clear()
        sample_tokens(**given | more)
        sample_tokens(**plain | more)
        assert [type(kernel).__name__ for kernel in launched] == names * 2
        assert launched[: len(names)] == launched[len(names) :]  # one kernel, whatever is forbidden or adjusted
    launched.clear()
    sample_tokens(**given | {"draws": False})
    sample_tokens(**plain | {"draws": False})
    assert [type(kernel).__name__ for kernel in launched] == ["GreedyTokens"] * 2
    assert [(kernel.constants["forbids"], kernel.constants["adjusted"]) for kernel in launched] == [
        (True, True),
        (False, False),
    ]
