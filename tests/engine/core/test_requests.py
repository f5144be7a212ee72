"""Requests that the engine takes, refuses and drops, and the settings that it refuses."""

from __future__ import annotations

import random

import pytest

from engine.core.settings import EngineSettings
from reference.serving.request import FinishReason, RequestError
from tests.engine.core.running import check_idle, engine_of, finished, request, run, specified
from tests.engine.core.tiny import MAX_MODEL_LEN
from tests.reference.serving.fakes import NUM_TOKEN_IDS

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
