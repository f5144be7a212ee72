"""Each request that cannot be served is refused by the name of the field that is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from reference.serving.admit import check_request
from reference.serving.request import RequestError
from reference.serving.served_model import ServedModel
from tests.reference.serving.fakes import EOS, NUM_TOKEN_IDS, HistoryModel, decode, request, served

CONTEXT = 8


def check(prompt: Sequence[int] = (1,), **params: Any) -> None:
    check_request(request(prompt=prompt, **params), served(HistoryModel(), CONTEXT))


@pytest.mark.parametrize(
    ("param", "arguments", "says"),
    [
        ("prompt_token_ids", {"prompt": ()}, "empty"),
        ("prompt_token_ids", {"prompt": [1] * CONTEXT}, "8 tokens and the context is 8.* may have 7"),
        ("prompt_token_ids", {"prompt": [1] * 99}, "99 tokens"),
        ("prompt_token_ids", {"prompt": [1, NUM_TOKEN_IDS]}, f"no token {NUM_TOKEN_IDS}"),
        ("prompt_token_ids", {"prompt": [1, -1]}, "no token -1"),
        ("logit_bias", {"logit_bias": {3: 1.0, NUM_TOKEN_IDS: 1.0}}, f"no token {NUM_TOKEN_IDS}"),
        ("allowed_token_ids", {"allowed_token_ids": (0, -5)}, "no token -5"),
        ("stop_token_ids", {"stop_token_ids": (NUM_TOKEN_IDS + 1,)}, f"0 to {NUM_TOKEN_IDS - 1}"),
        ("allowed_token_ids", {"allowed_token_ids": (EOS, 9), "stop_token_ids": (9,), "min_tokens": 1}, "min_tokens 1"),
    ],
)
def test_refused(param: str, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says) as error:
        check(**arguments)
    assert error.value.param == param


@pytest.mark.parametrize(
    "arguments",
    [
        {"prompt": [1] * (CONTEXT - 1)},
        {"prompt": [0, NUM_TOKEN_IDS - 1, EOS]},
        {"logit_bias": {0: -100.0, NUM_TOKEN_IDS - 1: 100.0}},
        {"allowed_token_ids": (EOS,)},
        {"allowed_token_ids": (EOS, 8), "min_tokens": 1},
        {"max_tokens": 10**9},
        {"top_k": 10**9},
    ],
)
def test_taken(arguments: dict[str, Any]) -> None:
    check(**arguments)


def test_an_end_of_sequence_id_that_cannot_be_sampled_is_a_mistake_in_the_setup() -> None:
    with pytest.raises(ValueError, match="999"):
        ServedModel(HistoryModel(), decode, frozenset({EOS, 999}), NUM_TOKEN_IDS, 8)
