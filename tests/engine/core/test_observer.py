"""What the engine tells of itself: queue times, prefix lookups, preemptions, the numbers of each step."""

from __future__ import annotations

from tests.engine.core.running import Told, check_idle, engine_of, finished, request, run, specified


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
