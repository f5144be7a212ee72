"""Log-probabilities of a prompt beside the prefix cache, and through preemption."""

from __future__ import annotations

import pytest

from tests.engine.core.running import Outputs, Told, check_idle, engine_of, request, run, specified


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
