"""Traces: what happens to an engine, as data. One trace is played to the engine and to the specification.

A trace is a list of events. `Add` and `Abort` come when their step is reached; the rest of the time the engine steps.
The specification serves each request alone, so its answer does not depend on when anything happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from engine.core.engine import Engine
from reference.serving.request import Request, RequestOutput, SamplingParams
from reference.serving.specification import Specification
from tests.engine.core.constraints import Salted
from tests.engine.core.tiny import MAX_MODEL_LEN
from tests.reference.serving.fakes import EOS

Outputs = dict[tuple[str, int], list[RequestOutput]]

# Prompts that share beginnings of many lengths, whole blocks and not.
TRUNKS = (
    tuple(range(60, 60 + MAX_MODEL_LEN)),
    (*range(60, 68), *range(100, 132)),  # as the first for two blocks
    (*range(100, 104), *range(64, 100)),  # as the first but for one block
)


@dataclass(frozen=True)
class Arrival:
    """A request, the step before which it is added, and the one before which it is aborted, if it is."""

    request: Request
    at: int
    aborted_at: int | None = None


@dataclass
class Played:
    outputs: Outputs = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)  # before they were finished
    steps: int = 0


@st.composite
def prompts(draw: st.DrawFn, max_len: int = MAX_MODEL_LEN - 1) -> tuple[int, ...]:
    if draw(st.booleans()):
        trunk = draw(st.sampled_from(TRUNKS))
        shared = trunk[: draw(st.integers(1, max_len))]
        tail = draw(st.lists(st.integers(97, 99), max_size=max(0, min(4, max_len - len(shared)))))
        return (*shared, *tail)
    return tuple(draw(st.lists(st.integers(97, 99), min_size=1, max_size=max_len)))


@st.composite
def sampling(draw: st.DrawFn, *, greedy: bool | None = None) -> SamplingParams:
    """Every parameter that an engine handles by itself occurs, most often none does."""
    greedy = draw(st.booleans()) if greedy is None else greedy

    def sometimes(values: st.SearchStrategy, otherwise: Any) -> Any:
        return draw(values) if draw(st.integers(0, 3)) == 0 else otherwise

    max_tokens = draw(st.one_of(st.none(), st.integers(1, 12)))
    constraint = sometimes(st.builds(Salted, st.integers(0, 99)), None)
    free = constraint is None  # an answer under a constraint ends where that does
    return SamplingParams(
        n=sometimes(st.integers(2, 3), 1),
        temperature=0.0 if greedy else draw(st.sampled_from([0.5, 1.0, 3.0])),
        top_k=sometimes(st.integers(1, 5), 0),
        top_p=sometimes(st.sampled_from([0.2, 0.9]), 1.0),
        min_p=sometimes(st.sampled_from([0.05, 0.5]), 0.0),
        repetition_penalty=sometimes(st.sampled_from([1.5, 0.7]), 1.0),
        presence_penalty=sometimes(st.sampled_from([1.5, -1.5]), 0.0),
        frequency_penalty=sometimes(st.sampled_from([1.0]), 0.0),
        logit_bias=sometimes(st.dictionaries(st.sampled_from([EOS, 97, 98]), st.sampled_from([-100.0, 5.0])), {}),
        allowed_token_ids=sometimes(st.sampled_from([(97, 98, EOS), tuple(range(60, 130))]), None),
        constraint=constraint,
        seed=draw(st.integers(0, 3)),
        max_tokens=max_tokens,
        min_tokens=sometimes(st.integers(1, max_tokens or 4), 0) if free else 0,
        stop=sometimes(st.sampled_from([("a",), ("bc", "ca"), ("\ufffd",)]), ()),
        stop_token_ids=sometimes(st.sampled_from([(97,), (98, 99)]), ()),
        ignore_eos=sometimes(st.booleans(), False) if free else False,
        include_stop_str_in_output=sometimes(st.booleans(), False),
        logprobs=sometimes(st.integers(0, 3), None),
        prompt_logprobs=sometimes(st.integers(0, 2), None),
    )


@st.composite
def traces(draw: st.DrawFn, *, max_requests: int = 8, greedy: bool | None = None) -> list[Arrival]:
    arrivals = []
    for number in range(draw(st.integers(1, max_requests))):
        request = Request(
            f"r{number}", draw(prompts()), draw(sampling(greedy=greedy)), draw(st.sampled_from([0, 0, 0, -1, 2]))
        )
        at = draw(st.integers(0, 12))
        aborted_at = at + draw(st.integers(0, 12)) if draw(st.integers(0, 4)) == 0 else None
        arrivals.append(Arrival(request, at, aborted_at))
    return arrivals


def play(engine: Engine, trace: Sequence[Arrival], after_step: Callable[[], None] = lambda: None) -> Played:
    """Serve a trace to its end. A request that was aborted must not be heard of again."""
    played = Played()
    gone: set[str] = set()
    due = sorted(trace, key=lambda arrival: arrival.at)
    while due or engine.has_work():
        while due and due[0].at <= played.steps:
            engine.add(due.pop(0).request)
        for arrival in trace:
            request_id = arrival.request.request_id
            if arrival.aborted_at == played.steps:
                if request_id in engine._requests:
                    played.aborted.add(request_id)
                engine.abort(request_id)
                gone.add(request_id)
        for output in engine.step():
            assert output.request_id not in gone, "something was heard of a request after it was aborted"
            played.outputs.setdefault((output.request_id, output.index), []).append(output)
        after_step()
        played.steps += 1
        assert played.steps < 5000, "the engine does not come to an end"
    return played


def specified(specification: Specification, trace: Sequence[Arrival]) -> Outputs:
    """What the specification says of every request of a trace."""
    outputs: Outputs = {}
    for arrival in trace:
        specification.add(replace(arrival.request, priority=0))
    while specification.has_work():
        for output in specification.step():
            outputs.setdefault((output.request_id, output.index), []).append(output)
    return outputs


def check_same(played: Played, expected: Outputs) -> None:
    """Every output of every sample is the specified one; of an aborted request, a beginning of them."""
    for sample, outputs in expected.items():
        got = played.outputs.get(sample, [])
        if sample[0] in played.aborted:
            assert got == outputs[: len(got)], sample
        else:
            assert got == outputs, sample
    assert set(played.outputs) <= set(expected)
