"""Whose turn it is: urgent requests overtake, and do not starve the patient."""

from __future__ import annotations

from engine.core.engine import Engine
from reference.serving.request import PRIORITY_STEP
from tests.engine.core.running import engine_of, request


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
