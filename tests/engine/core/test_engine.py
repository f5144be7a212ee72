"""The engine as its caller meets it: requests that end, fail, are dropped, overtake; and what it tells of itself."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

from engine.core.engine import Engine
from engine.core.settings import EngineSettings
from reference.model.history_runner import HistoryModel, HistoryRunner
from reference.serving.request import PRIORITY_STEP, FinishReason, Request, RequestError, RequestOutput, SamplingParams
from reference.serving.runner import Batch, StepOutput
from reference.serving.specification import Specification
from tests.engine.core.tiny import BLOCK_SIZE, MAX_MODEL_LEN, check_conserved, tiny_engine
from tests.reference.serving.fakes import EOS, NUM_TOKEN_IDS, VOCAB_SIZE, decode, ids_of, text_of, tokens_of

MODEL = HistoryModel(VOCAB_SIZE)

Outputs = dict[tuple[str, int], list[RequestOutput]]


def engine_of(
    *, num_blocks: int = 64, model: HistoryModel = MODEL, observer: Any = None, clock: Any = None, **settings: Any
) -> Engine:
    runner = HistoryRunner(model, num_token_ids=NUM_TOKEN_IDS, num_blocks=num_blocks, block_size=BLOCK_SIZE)
    options = {} if clock is None else {"clock": clock}
    return tiny_engine(runner, EngineSettings(**settings), observer=observer, **options)


def request(name: str = "r", prompt: Sequence[int] = (7,), priority: int = 0, **params: Any) -> Request:
    """Goes on to `max_tokens`, unless it says otherwise."""
    return Request(name, tuple(prompt), SamplingParams(**{"ignore_eos": True, "max_tokens": 6} | params), priority)


def finished(engine: Engine) -> Outputs:
    """Step to the end."""
    outputs: Outputs = {}
    while engine.has_work():
        for output in engine.step():
            outputs.setdefault((output.request_id, output.index), []).append(output)
    return outputs


def run(engine: Engine, *requests: Request) -> Outputs:
    for each in requests:
        engine.add(each)
    return finished(engine)


def specified(*requests: Request, model: HistoryModel = MODEL) -> Outputs:
    core = Specification(model, decode, eos_token_ids=[EOS], num_token_ids=NUM_TOKEN_IDS, max_model_len=MAX_MODEL_LEN)
    return run(core, *requests)  # type: ignore[arg-type]


def check_idle(engine: Engine) -> None:
    """Nothing is left of any request: no block, no slot, no work."""
    assert not engine.has_work() and engine.step() == []
    pool = engine.pool
    assert pool.num_idle == pool.num_blocks and not any(pool.references)
    check_conserved(engine)
    assert not engine.scheduler.running and not engine.scheduler.num_waiting
    assert sorted(engine._rows._slots) == list(range(engine.settings.max_num_seqs))


# Taking requests


def test_an_id_that_runs_is_refused_and_may_be_used_again_when_it_has_ended() -> None:
    engine = engine_of()
    engine.add(request(n=2))
    with pytest.raises(RequestError, match="still running") as refused:
        engine.add(request())
    assert refused.value.param == "request_id"
    assert finished(engine) == specified(request(n=2))
    assert run(engine, request(seed=1)) == specified(request(seed=1))


def test_an_id_may_be_used_again_at_once_after_an_abort_though_its_result_is_in_flight() -> None:
    engine = engine_of()
    engine.add(request())
    engine.step()
    engine.step()
    engine.abort("r")
    again = request(prompt=(8, 9), seed=3)
    assert run(engine, again) == specified(again)


def test_what_is_refused_harms_nobody_else() -> None:
    engine = engine_of()
    engine.add(request("good"))
    engine.step()
    for bad in (request("bad", ()), request("bad", (1,) * MAX_MODEL_LEN), request("bad", (NUM_TOKEN_IDS,))):
        with pytest.raises(RequestError):
            engine.add(bad)
    assert finished(engine) == specified(request("good"))
    check_idle(engine)


def test_a_request_larger_than_the_kv_memory_is_refused_with_the_limit() -> None:
    engine = engine_of(num_blocks=3)
    assert engine.max_model_len == engine.kv_capacity == 12
    with pytest.raises(RequestError, match=r"12 tokens and the context is 12: .* it may have 11") as refused:
        engine.add(request(prompt=range(12)))
    assert refused.value.param == "prompt_token_ids"
    outputs = run(engine, request(prompt=range(11)), request("whole", (1, 2), max_tokens=None))
    assert outputs["r", 0][-1].finish_reason is FinishReason.LENGTH and len(outputs["r", 0]) == 1
    assert len(outputs["whole", 0]) == 10, "to the end of the memory"
    check_idle(engine)


# Dropping them


@pytest.mark.parametrize("overlap", [False, True])
def test_after_an_abort_there_is_work_until_what_is_in_flight_has_come(overlap: bool) -> None:
    engine = engine_of(overlap=overlap)
    engine.abort("nobody")
    assert not engine.has_work() and engine.step() == []
    engine.add(request())
    engine.step()
    engine.abort("r")
    assert engine.has_work() == overlap
    assert engine.step() == [] and not engine.has_work()
    engine.abort("r")
    check_idle(engine)


def test_an_abort_drops_all_samples_and_gives_their_blocks_up_at_once() -> None:
    engine = engine_of(max_num_seqs=2)
    engine.add(request(n=3, prompt=range(9)))
    engine.step()
    assert engine.pool.usage > 0 and engine.scheduler.num_waiting == 1
    engine.abort("r")
    assert engine.pool.usage == 0 and engine.scheduler.num_waiting == 0
    assert finished(engine) == {}
    check_idle(engine)


def test_a_thousand_aborts_leave_no_block_behind() -> None:
    chance = random.Random(0)
    engine = engine_of(num_blocks=14, max_num_seqs=4, max_num_batched_tokens=8)
    alive: list[str] = []
    for number in range(1000):
        name = f"r{number}"
        prompt = chance.choices(range(60, 64), k=chance.randint(1, 30))
        engine.add(request(name, prompt, n=chance.randint(1, 2), priority=chance.randint(-1, 1), max_tokens=9))
        alive.append(name)
        for _ in range(chance.randint(0, 1)):
            engine.step()
        while len(alive) > 5 or (alive and chance.random() < 0.5):
            engine.abort(alive.pop(chance.randrange(len(alive))))
    for name in alive:
        engine.abort(name)
    finished(engine)
    check_idle(engine)


def test_the_samples_of_a_request_hash_its_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []

    def counted(*args: Any, **options: Any) -> Any:
        hashed.append(1)
        return blake2b(*args, **options)

    monkeypatch.setattr("engine.core.prefix.blake2b", counted)
    engine = engine_of(num_blocks=200, max_num_seqs=8)
    finished_ = run(engine, request("r", range(60, 60 + 6 * BLOCK_SIZE), n=8, max_tokens=2))
    assert len(finished_) == 8 and len(hashed) == 6


def test_what_was_aborted_while_it_waited_is_let_go_of() -> None:
    """Behind one that runs for long, so that nothing of the queue comes to its top."""
    engine = engine_of(max_num_seqs=1)
    engine.add(request("runs", [60], max_tokens=50, ignore_eos=True))
    engine.step()
    for number in range(100):
        engine.add(request(f"r{number}", [61], max_tokens=1))
    for number in range(95):
        engine.abort(f"r{number}")
    assert engine.scheduler.num_waiting == 5 and len(engine.scheduler._waiting) <= 10
    ended = {name for name, _ in finished(engine)}
    assert {f"r{number}" for number in range(95, 100)} < ended


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


# What the engine tells of itself


@dataclass
class Told:
    """Keeps what it is told."""

    queued: list[float] = field(default_factory=list)
    lookups: list[tuple[int, int]] = field(default_factory=list)
    preemptions: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)

    def scheduled(self, queue_seconds: float) -> None:
        self.queued.append(queue_seconds)

    def prefix_lookup(self, num_tokens: int, num_cached: int) -> None:
        self.lookups.append((num_tokens, num_cached))

    def preempted(self) -> None:
        self.preemptions += 1

    def stepped(self, **numbers: Any) -> None:
        self.steps.append(numbers)


def test_an_observer_is_told_the_right_numbers() -> None:
    told, now = Told(), [100.0]
    engine = engine_of(num_blocks=8, observer=told, clock=lambda: now[0], max_num_seqs=1, overlap=False)
    engine.add(request("a", range(60, 70), max_tokens=2))
    now[0] = 103.0
    engine.add(request("b", (*range(60, 68), 1), max_tokens=1))
    engine.step()
    assert told.queued == [3.0] and told.lookups == [(10, 0)]
    assert told.steps == [{"num_running": 1, "num_waiting": 1, "num_batched_tokens": 10, "kv_usage": 3 / 8}]
    engine.step()
    assert told.steps[1:] == [{"num_running": 1, "num_waiting": 1, "num_batched_tokens": 1, "kv_usage": 3 / 8}]
    now[0] = 110.0
    engine.step()
    assert told.queued == [3.0, 7.0], "once a sample, when it runs for the first time"
    assert told.lookups == [(10, 0), (9, 8)]
    assert told.steps[2:] == [{"num_running": 1, "num_waiting": 0, "num_batched_tokens": 1, "kv_usage": 3 / 8}]
    assert told.preemptions == 0
    finished(engine)
    assert told.steps[-1]["kv_usage"] in (0, 3 / 8)


def test_a_preempted_sample_is_told_of_and_its_queue_time_once() -> None:
    told = Told()
    engine = engine_of(num_blocks=6, observer=told, prefix_cache=False)
    requests = [request(name, range(60, 68), max_tokens=12) for name in "ab"]
    assert run(engine, *requests) == specified(*requests)
    assert told.preemptions > 0
    assert len(told.queued) == 2
    assert len(told.lookups) == 2 + told.preemptions, "it is admitted again each time"
    assert max(step["kv_usage"] for step in told.steps) == 1
    check_idle(engine)


# Turns


def first_outputs(engine: Engine) -> list[str]:
    """The names of requests in the order of their first tokens."""
    names: list[str] = []
    while engine.has_work():
        names += [output.request_id for output in engine.step() if output.request_id not in names]
    return names


def test_an_urgent_late_arrival_overtakes() -> None:
    engine = engine_of(max_num_seqs=1, max_num_batched_tokens=16)
    for name in ("a", "b", "c"):
        engine.add(request(name))
    engine.step()
    engine.add(request("urgent", priority=-1))
    assert first_outputs(engine) == ["a", "urgent", "b", "c"]


def test_an_urgent_arrival_does_not_wait_for_a_long_prompt_to_be_computed() -> None:
    """That takes each step's whole budget, for ten steps; one that is no more urgent waits for it."""
    engine = engine_of(max_num_batched_tokens=4, max_num_seqs=4)
    engine.add(request("long", range(60, 99), max_tokens=1))
    engine.step()
    engine.add(request("patient", max_tokens=1))
    engine.add(request("urgent", priority=-1, max_tokens=1))
    assert first_outputs(engine) == ["urgent", "long", "patient"]


def test_a_flood_of_urgent_ones_does_not_starve_the_patient() -> None:
    """Two of them arrive for each that is served, for ever; the patient one is served at its turn all the same."""
    engine = engine_of(max_num_seqs=1, max_num_batched_tokens=8, overlap=False)
    engine.add(request("patient", max_tokens=1))
    served: list[str] = []
    for number in range(PRIORITY_STEP + 10):
        for which in "ab":
            engine.add(request(f"urgent {number} {which}", priority=-1, max_tokens=1))
        served += [output.request_id for output in engine.step()]
    assert served.index("patient") == PRIORITY_STEP - 1
    assert served[:2] == ["urgent 0 a", "urgent 0 b"]


def test_the_most_urgent_keep_their_blocks() -> None:
    engine = engine_of(num_blocks=6, prefix_cache=False, overlap=False)
    engine.add(request("early", range(60, 68), max_tokens=12))
    engine.step()
    engine.add(request("urgent", range(60, 68), max_tokens=12, priority=-1))
    ends = [output.request_id for _ in range(60) for output in engine.step() if output.finish_reason]
    assert ends == ["urgent", "early"]


# The prefix cache


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_of_a_prompt_wholly_in_the_cache_the_last_block_is_computed_anew(blocks: int) -> None:
    told = Told()
    engine = engine_of(observer=told)
    prompt = range(60, 60 + blocks * BLOCK_SIZE)
    first, second = request("a", prompt), request("b", prompt)
    assert run(engine, first) == specified(first)
    assert run(engine, second) == specified(second)
    assert told.lookups[1] == (len(prompt), len(prompt) - BLOCK_SIZE)


def test_samples_of_one_prompt_share_its_blocks_and_draw_apart() -> None:
    engine = engine_of()
    asked = request(n=4, prompt=range(60, 73), max_tokens=8, seed=11)
    engine.add(asked)
    engine.step()
    tables = [sequence.blocks for sequence in engine.scheduler.running]
    assert len(tables) == 4 and all(table[:3] == tables[0][:3] for table in tables)
    assert [engine.pool.references[block] for block in tables[0]] == [4, 4, 4, 1]
    assert len({table[3] for table in tables}) == 4
    outputs = finished(engine)
    streams = [tuple(tokens_of(outputs["r", index])) for index in range(4)]
    assert len(set(streams)) == 4, "four distinct ones"
    assert outputs == specified(asked) == run(engine_of(), asked), "and the same whenever it is asked"


def test_a_seeded_request_keeps_its_tokens_in_any_company() -> None:
    asked = request("seeded", range(60, 75), max_tokens=9, seed=2**63 + 5, n=2)
    alone = run(engine_of(), asked)
    chance = random.Random(1)
    for max_num_batched_tokens in (4, 7, 64):
        engine = engine_of(num_blocks=16, max_num_seqs=4, max_num_batched_tokens=max_num_batched_tokens)
        for number in range(6):
            engine.add(request(f"{number}", range(60, 60 + 4 * number + 1), seed=chance.getrandbits(64), max_tokens=9))
            if number == 3:
                engine.add(asked)
        outputs = finished(engine)
        assert [outputs["seeded", index] for index in (0, 1)] == [alone["seeded", 0], alone["seeded", 1]]


def test_log_probabilities_of_a_prompt_pass_the_cache_by() -> None:
    told = Told()
    engine = engine_of(observer=told)
    plain, asks = request("plain", range(60, 75)), request("asks", range(60, 75), prompt_logprobs=2)
    assert run(engine, plain) | run(engine, asks) == specified(plain, asks)
    assert told.lookups == [(15, 0), (15, 0)]
    again = request("again", range(60, 75))
    assert run(engine, again) == specified(again)
    assert told.lookups[2] == (15, 12)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("tokens", [3, 512])
def test_log_probabilities_of_a_prompt_survive_preemption(tokens: int, overlap: bool) -> None:
    told = Told()
    engine = engine_of(num_blocks=11, observer=told, overlap=overlap, max_num_seqs=3, max_num_batched_tokens=tokens)
    requests = [request(name, range(60, 72), prompt_logprobs=1, max_tokens=20, logprobs=1) for name in "abc"]
    assert run(engine, *requests) == specified(*requests)
    assert told.preemptions > 0
    check_idle(engine)


@pytest.mark.parametrize("when", range(1, 10))
def test_preemption_in_the_middle_of_a_prompt_forgets_no_log_probability(when: int) -> None:
    """One token of the prompt is computed in a step, until the other sample needs its fourth block."""
    told = Told()
    engine = engine_of(num_blocks=8, observer=told, max_num_seqs=2, max_num_batched_tokens=2)
    first, asks = request("first", max_tokens=20), request("asks", range(60, 80), prompt_logprobs=1)
    outputs: Outputs = {}
    engine.add(first)
    for step in range(80):
        if step == when:
            engine.add(asks)
        for output in engine.step():
            outputs.setdefault((output.request_id, output.index), []).append(output)
    assert outputs == specified(first, asks)
    assert told.lookups == [(1, 0), (20, 0), (20, 0)] and told.preemptions == 1
    check_idle(engine)


# Settings


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_seqs": 1025, "max_num_batched_tokens": 2048}, r"max_num_seqs is 1025; it must lie in \[1, 1024\]"),
        ({"max_num_seqs": 8, "max_num_batched_tokens": 7}, "max_num_batched_tokens is 7; with max_num_seqs 8"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(settings: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        EngineSettings(**settings)  # type: ignore[arg-type]
    EngineSettings(max_num_seqs=8, max_num_batched_tokens=8)


def test_stop_strings_leak_no_part_of_themselves() -> None:
    """`DEFGHIJ` after `ABC`: token by token, over an engine whose model says just that."""
    said = [*ids_of("xABCDEFGHIJy"), EOS]
    model = Scripted(said)
    engine = engine_of(model=model)
    outputs = run(engine, request(temperature=0.0, max_tokens=20, stop=("CDEFGHIJ",), ignore_eos=False))["r", 0]
    assert [output.text for output in outputs] == ["x", "A", "B", *[""] * 8]
    assert outputs[-1].stop_reason == "CDEFGHIJ"


class Scripted(HistoryModel):
    """Says the script after the prompt (7,)."""

    def __init__(self, script: Sequence[int]) -> None:
        super().__init__(VOCAB_SIZE)
        self._next = {
            MODEL.last_logits((7, *script[:said])).tobytes(): token_id for said, token_id in enumerate(script)
        }

    def logits(self, seed: int) -> np.ndarray:
        logits = super().logits(seed)
        token_id = self._next.get(logits.tobytes())
        if token_id is not None:
            logits[token_id] = 30.0
        return logits
