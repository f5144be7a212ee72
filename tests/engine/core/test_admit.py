"""The engine takes and refuses what the specification does, in the same words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.core.admit import check_request
from reference.serving import admit
from reference.serving.request import Request, RequestError, SamplingParams
from reference.serving.served_model import ServedModel
from tests.reference.serving.fakes import HistoryModel, decode

NUM_TOKEN_IDS = 8
IDS = st.integers(-2, NUM_TOKEN_IDS + 1)
USUAL = st.integers(0, NUM_TOKEN_IDS - 1)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Each list of ids is in order more often than not, so that later checks have their turn."""

    def ids(**limits: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(IDS if draw(st.integers(0, 4)) == 0 else USUAL, **limits)))

    params = SamplingParams(
        logit_bias=dict.fromkeys(ids(max_size=2), 1.0),
        stop_token_ids=ids(max_size=3),
        allowed_token_ids=ids(min_size=1, max_size=3) if draw(st.booleans()) else None,
        min_tokens=draw(st.sampled_from([0, 1, 3])),
        max_tokens=draw(st.sampled_from([None, 3, 10**9])),
        n=draw(st.integers(1, 3)),
    )
    return Request("r", ids(max_size=8), params)


def refusal(check: Callable[[], None]) -> tuple[str, str] | None:
    try:
        check()
    except RequestError as error:
        return error.param, str(error)
    return None


def outcomes(request: Request, eos: frozenset[int], max_model_len: int) -> tuple[object, object]:
    served = ServedModel(HistoryModel(), decode, eos, NUM_TOKEN_IDS, max_model_len)
    return (
        refusal(
            lambda: check_request(request, max_model_len=max_model_len, num_token_ids=NUM_TOKEN_IDS, eos_token_ids=eos)
        ),
        refusal(lambda: admit.check_request(request, served)),
    )


@settings(max_examples=250)
@given(requests(), st.frozensets(USUAL, max_size=2), st.integers(1, 9))
@example(Request("r", (), SamplingParams()), frozenset(), 9)
@example(
    Request("r", (1,), SamplingParams(allowed_token_ids=(2, 3), stop_token_ids=(3,), min_tokens=1)), frozenset({2}), 9
)
@example(Request("r", (1,), SamplingParams(allowed_token_ids=(2, 3), stop_token_ids=(3,))), frozenset({2}), 9)
def test_the_same_requests_are_refused_in_the_same_words(
    request: Request, eos: frozenset[int], max_model_len: int
) -> None:
    ours, specified = outcomes(request, eos, max_model_len)
    assert ours == specified


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (Request("r", (), SamplingParams()), "prompt_token_ids"),
        (Request("r", (1,) * 9, SamplingParams()), "prompt_token_ids"),
        (Request("r", (NUM_TOKEN_IDS,), SamplingParams()), "prompt_token_ids"),
        (Request("r", (1,), SamplingParams(logit_bias={-1: 1.0})), "logit_bias"),
        (Request("r", (1,), SamplingParams(stop_token_ids=(99,))), "stop_token_ids"),
        (Request("r", (1,), SamplingParams(allowed_token_ids=(99,))), "allowed_token_ids"),
        (Request("r", (1,), SamplingParams(allowed_token_ids=(2,), min_tokens=1)), "allowed_token_ids"),
        (Request("r", (1,), SamplingParams(allowed_token_ids=(2,))), None),
        (Request("r", (1,) * 8, SamplingParams(max_tokens=10**9)), None),
    ],
)
def test_what_is_refused_and_by_which_name(request_: Request, param: str | None) -> None:
    ours, _ = outcomes(request_, frozenset({2}), 9)
    assert (ours and ours[0]) == param  # type: ignore[index]
