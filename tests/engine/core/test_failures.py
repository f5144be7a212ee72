"""A runner, a grammar or logits that fail: what ends, what goes on, and that the engine is as new."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from engine.core.settings import EngineSettings
from reference.model.history_runner import HistoryModel, HistoryRunner
from reference.serving.request import FinishReason
from reference.serving.runner import Batch, StepOutput
from tests.engine.core.running import MODEL, check_idle, engine_of, finished, request, run, specified
from tests.engine.core.tiny import BLOCK_SIZE, tiny_engine
from tests.reference.serving.fakes import NUM_TOKEN_IDS, VOCAB_SIZE, decode, text_of, tokens_of

# A runner that fails


class Failing(HistoryRunner):
    """Raises in the step that it is told to, in `submit` or in `result`."""

    fails: str | None = None

    def submit(self, batch: Batch) -> int:
        ticket = super().submit(batch)
        if self.fails == "submit":
            raise ZeroDivisionError("submit")
        return ticket

    def result(self, ticket: int) -> StepOutput:
        if self.fails == "result":
            raise ZeroDivisionError("result")
        return super().result(ticket)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("fails", ["submit", "result"])
def test_a_runner_that_fails_drops_all_requests_and_the_engine_is_as_new(fails: str, overlap: bool) -> None:
    runner = Failing(MODEL, num_token_ids=NUM_TOKEN_IDS, num_blocks=20, block_size=BLOCK_SIZE)
    settings = EngineSettings(max_num_seqs=2, overlap=overlap)
    engine = tiny_engine(runner, settings)
    requests = [request(name, prompt=range(60, 70), n=2) for name in "abc"]
    for _ in range(2):  # and it can happen again
        for each in requests:
            engine.add(each)
        for _ in range(3):
            engine.step()
        runner.fails = fails
        with pytest.raises(ZeroDivisionError, match=fails):
            engine.step()
        runner.fails = None
        check_idle(engine)
        assert engine.pool.cached == [], "nothing of what was in memory is trusted"
        runner.poison(range(20))
        assert run(engine, *requests) == specified(*requests)
        check_idle(engine)


# Grammars that fail


@dataclass(frozen=True)
class Fails:
    """A constraint that allows all, and raises at the nth call of a method."""

    method: str
    calls: int

    def begin(self) -> FailingState:
        return FailingState(self)


@dataclass
class FailingState:
    constraint: Fails
    counts: dict[str, int] = field(default_factory=dict)

    def _called(self, method: str) -> None:
        self.counts[method] = self.counts.get(method, 0) + 1
        if (method, self.counts[method]) == (self.constraint.method, self.constraint.calls):
            raise ValueError(f"{method} is broken")

    def allowed(self) -> None:
        self._called("allowed")

    def accept(self, token_id: int) -> None:
        self._called("accept")


@pytest.mark.parametrize("broken", [Fails("accept", 2), Fails("allowed", 3)])
def test_a_grammar_that_fails_ends_its_own_sample_alone(broken: Fails) -> None:
    engine = engine_of()
    params: dict[str, Any] = {"prompt": range(60, 70), "seed": 5}
    outputs = run(engine, request("broken", ignore_eos=False, constraint=broken, **params), request("sound", **params))
    assert outputs["sound", 0] == specified(request("sound", **params))["sound", 0]
    *_, last = outputs["broken", 0]
    assert last.finish_reason is FinishReason.ERROR
    assert last.error == f"the grammar of the answer failed: {broken.method} is broken"
    assert tokens_of(outputs["broken", 0]) == tokens_of(outputs["sound", 0])[:2]
    check_idle(engine)


def test_the_text_that_was_held_back_comes_with_the_error_of_a_grammar() -> None:
    answer = tokens_of(run(engine_of(), request(temperature=0.0, allowed_token_ids=(97,)))["r", 0])
    assert decode(answer) == "aaaaaa"
    broken = request(
        temperature=0.0, allowed_token_ids=(97,), ignore_eos=False, stop=("aaaa",), constraint=Fails("accept", 2)
    )
    outputs = run(engine_of(), broken)["r", 0]
    assert outputs[-1].finish_reason is FinishReason.ERROR
    assert text_of(outputs) == "aa", "all the text of its tokens"


def test_a_grammar_that_fails_from_the_start_is_not_taken() -> None:
    engine = engine_of()
    engine.add(request("sound"))
    with pytest.raises(ValueError, match="allowed is broken"):
        engine.add(request("broken", ignore_eos=False, constraint=Fails("allowed", 1)))
    assert finished(engine) == specified(request("sound"))
    check_idle(engine)


# Logits that fail


class Breaks(HistoryModel):
    """Says NaN after histories that end as these do."""

    def __init__(self, *histories: Sequence[int]) -> None:
        super().__init__(VOCAB_SIZE)
        self._broken = [MODEL.last_logits(history) for history in histories]

    def logits(self, seed: int) -> np.ndarray:
        logits = super().logits(seed)
        if any(np.array_equal(logits, broken) for broken in self._broken):
            logits[3] = np.nan
        return logits


@pytest.mark.parametrize("tokens", [4, 512])
@pytest.mark.parametrize("at", [1, 6, 9])
def test_unusable_logits_end_their_own_sample_and_name_the_position(at: int, tokens: int) -> None:
    """In the middle of a prompt whose log-probabilities are asked for, and where the first token is sampled."""
    prompt = list(range(60, 69))
    model = Breaks(prompt[:at], prompt[: at + 1])
    requests = [
        request("asks", prompt, prompt_logprobs=1, logprobs=0),
        request("other", [1, 2], prompt_logprobs=1),
        request("does not", prompt),
    ]
    engine = engine_of(model=model, max_num_seqs=3, max_num_batched_tokens=tokens)
    outputs = run(engine, *requests)
    assert outputs == specified(*requests, model=model)
    [ended] = outputs["asks", 0]
    assert ended.finish_reason is FinishReason.ERROR and ended.error and f"position {at} hold NaN" in ended.error
    assert (outputs["does not", 0][-1].finish_reason is FinishReason.ERROR) == (at == 9)
    check_idle(engine)
