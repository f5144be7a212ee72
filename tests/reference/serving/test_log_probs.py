"""What clients are told of a position is what the kernel says of its row."""

from __future__ import annotations

import numpy as np
import pytest

from reference.serving.log_probs import log_probs_at, prompt_log_probs
from reference.serving.usable import UnusableLogits
from tests.reference.serving.fakes import HistoryModel


def test_one_position() -> None:
    logits = np.log(np.array([0.1, 0.4, 0.4, 0.1], np.float32))
    answer = log_probs_at(logits, 3, 3)
    assert (answer.token_id, answer.rank) == (3, 3)
    assert answer.logprob == pytest.approx(np.log(0.1))
    assert [token_id for token_id, _ in answer.top] == [1, 2, 0]
    assert [value for _, value in answer.top] == pytest.approx(np.log([0.4, 0.4, 0.1]))
    assert type(answer.logprob) is float and type(answer.rank) is type(answer.top[0][0]) is int


def test_no_top_and_more_top_than_there_are_tokens() -> None:
    logits = np.zeros(3, np.float32)
    assert log_probs_at(logits, 0, 0).top == ()
    assert len(log_probs_at(logits, 0, 20).top) == 3


def test_each_prompt_token_is_judged_by_the_row_before_it() -> None:
    model, prompt = HistoryModel(), (5, 9, 5, 7)
    answers = prompt_log_probs(model.all_logits(prompt), prompt, 2)
    assert answers[0] is None
    assert answers[1:] == tuple(log_probs_at(model.last_logits(prompt[:i]), prompt[i], 2) for i in (1, 2, 3))


def test_a_prompt_of_one_token() -> None:
    assert prompt_log_probs(HistoryModel().all_logits((5,)), (5,), 2) == (None,)


def test_an_unusable_row_is_an_error_but_the_last_row_is_not_read() -> None:
    good, bad = np.zeros(9, np.float32), np.full(9, np.nan, np.float32)
    assert len(prompt_log_probs([good, good, bad], (1, 2, 3), 1)) == 3
    with pytest.raises(UnusableLogits, match="position 2"):
        prompt_log_probs([good, bad, good], (1, 2, 3), 1)
