"""What runs next: by hand, and as properties of any history of arrivals, results and endings."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Hashable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.serving.paging import Paging, conservation_errors
from reference.serving.request import PRIORITY_STEP
from reference.serving.schedule import Plan, Sample, give_up, next_step


class Machine:
    """The policy with a model that says 0: plans run in order, and `lag` of them are in flight."""

    def __init__(
        self, *, blocks: int = 100, block_size: int = 2, tokens: int = 8, seqs: int = 4, prefix_cache: bool = True
    ) -> None:
        self.paging = Paging(blocks, block_size)
        self.tokens, self.seqs, self.prefix_cache = tokens, seqs, prefix_cache
        self.running: list[Sample] = []
        self.waiting: list[Sample] = []
        self.in_flight: deque[list[tuple[Sample, bool]]] = deque()
        self.num_added = 0

    def add(
        self, name: Hashable, prompt: Sequence[int], *, priority: int = 0, left: int = 100, **flags: bool
    ) -> Sample:
        sample = Sample(name, self.num_added, priority, list(prompt), left, **flags)
        self.num_added += 1
        self.waiting.append(sample)
        return sample

    def plan(self) -> Plan:
        plan = next_step(
            self.running,
            self.waiting,
            self.paging,
            max_num_batched_tokens=self.tokens,
            max_num_seqs=self.seqs,
            prefix_cache=self.prefix_cache,
        )
        batch = []
        for sample, _ in plan.rows:
            samples = sample.num_lacking == 0
            sample.num_in_flight += 1
            sample.num_pending += samples
            sample.num_left -= samples
            batch.append((sample, samples))
        if batch:
            self.in_flight.append(batch)
        return plan

    def result(self, token: int = 0) -> None:
        """Of the oldest batch in flight. A sample that has had all its tokens ends."""
        for sample, samples in self.in_flight.popleft():
            sample.num_in_flight -= 1
            if samples:
                sample.num_pending -= 1
                if sample in self.running or sample in self.waiting:
                    sample.token_ids.append(token)
                    if not sample.num_left and not sample.num_pending:
                        self.end(sample)

    def end(self, sample: Sample) -> None:
        if sample in self.running:
            self.running.remove(sample)
            give_up(sample, self.paging, self.prefix_cache)
        else:
            self.waiting.remove(sample)

    def step(self) -> list[tuple[Hashable, int]]:
        """A plan and its result: who ran, and how many tokens."""
        plan = self.plan()
        if self.in_flight:
            self.result()
        return rows(plan)


def rows(plan: Plan) -> list[tuple[Hashable, int]]:
    return [(sample.name, count) for sample, count in plan.rows]


def names(samples: Sequence[Sample]) -> list[Hashable]:
    return [sample.name for sample in samples]


# By hand


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks_and_then_decodes() -> None:
    machine = Machine(tokens=4)
    machine.add("a", range(10))
    assert [machine.step() for _ in range(5)] == [[("a", 4)], [("a", 4)], [("a", 2)], [("a", 1)], [("a", 1)]]


def test_who_decodes_runs_before_prompts_and_these_share_what_is_left() -> None:
    machine = Machine(tokens=8)
    machine.add("a", [99, 99])
    machine.step()
    machine.add("b", range(10), priority=-1)
    machine.add("c", range(20, 24))
    assert machine.step() == [("a", 1), ("b", 7)]
    assert machine.step() == [("a", 1), ("b", 3), ("c", 4)], "b is before c, and after a, which decodes"
    assert machine.step() == [("b", 1), ("a", 1), ("c", 1)], "all decode: the most urgent first"


def test_no_more_samples_run_than_may() -> None:
    machine = Machine(seqs=2)
    for name in "abc":
        machine.add(name, [ord(name)], left=2)
    assert machine.step() == [("a", 1), ("b", 1)]
    assert names(machine.waiting) == ["c"]
    machine.step()
    assert machine.step() == [("c", 1)], "a and b have ended"


def test_none_is_admitted_out_of_turn() -> None:
    machine = Machine(blocks=4, block_size=2)
    machine.add("a", range(4), left=1)
    machine.add("large", range(10, 16), left=1)
    machine.add("small", [20], left=1)
    assert machine.step() == [("a", 4)], "there is room for the small one, and it is not its turn"
    assert machine.step() == [("large", 6), ("small", 1)]


def test_the_least_urgent_gives_its_blocks_up_and_begins_anew_at_its_place() -> None:
    machine = Machine(blocks=4, block_size=2, prefix_cache=False)
    machine.add("a", [1, 2, 3])
    machine.add("b", [4, 5, 6])
    machine.add("c", [7])
    assert machine.step() == [("a", 3), ("b", 3)]
    assert machine.step() == [("a", 1), ("b", 1)]
    plan = machine.plan()  # each needs a third block for its fifth token, and there is none
    assert names(plan.preempted) == ["b"] and rows(plan) == [("a", 1)]
    assert plan.admitted == {}, "nobody is admitted in a step that had to take blocks away"
    assert names(machine.waiting) == ["b", "c"] and machine.waiting[0].num_computed == 0
    machine.result()
    assert machine.step() == [("a", 1)], "b needs three blocks, and is before c"
    machine.end(machine.running[0])
    assert machine.step() == [("b", 5), ("c", 1)], "what it had sampled is computed with its prompt"


def test_the_sample_that_needs_a_block_may_be_the_one_that_gives_up() -> None:
    machine = Machine(blocks=3, block_size=2, prefix_cache=False)
    machine.add("a", [1])
    machine.add("b", [2, 3, 4, 5])
    machine.step()
    plan = machine.plan()
    assert names(plan.preempted) == ["b"] and rows(plan) == [("a", 1)]


def test_what_the_cache_holds_is_not_computed_again() -> None:
    machine = Machine(block_size=2)
    machine.add("a", [1, 2, 3, 4, 5])
    machine.add("b", [1, 2, 3, 4])
    machine.add("c", [1, 2, 3, 4, 9], uses_prefix_cache=False)
    plan = machine.plan()
    assert rows(plan) == [("a", 5), ("b", 2), ("c", 1)], "of the batch they are in, and never the last token"
    assert plan.admitted == {"a": 0, "b": 2, "c": 0}
    without = Machine(block_size=2, prefix_cache=False)
    without.add("a", [1, 2, 3, 4, 5])
    without.add("b", [1, 2, 3, 4])
    assert rows(without.plan()) == [("a", 5), ("b", 3)]


def test_a_token_in_flight_is_fed_to_the_model_before_anyone_has_seen_it() -> None:
    machine = Machine()
    machine.add("free", [1])
    machine.add("constrained", [2], needs_last_token=True)
    machine.add("spent", [3], left=1)
    machine.add("prompt", range(10, 20))
    assert rows(machine.plan()) == [("free", 1), ("constrained", 1), ("spent", 1), ("prompt", 5)]
    assert rows(machine.plan()) == [("free", 1), ("prompt", 5)], "the others wait for the result, or for nothing"
    machine.result()
    assert rows(machine.plan()) == [("free", 1), ("constrained", 1), ("prompt", 1)]


def test_a_preempted_sample_waits_for_what_it_has_in_flight() -> None:
    machine = Machine(blocks=4, block_size=1)
    machine.add("a", [1], left=3)
    machine.add("b", [2, 3])
    machine.plan()
    plan = machine.plan()
    assert names(plan.preempted) == ["b"] and machine.waiting[0].num_in_flight == 1
    machine.end(machine.running[0])
    assert rows(machine.plan()) == [], "there is room, but what it has sampled is not known"
    machine.result()  # of the first batch, in which b sampled
    machine.result()
    assert machine.step() == [("b", 1)], "two of its three tokens are cached"


@pytest.mark.parametrize(("gap", "first"), [(PRIORITY_STEP - 1, "late"), (PRIORITY_STEP, "early")])
def test_a_step_of_priority_is_worth_that_many_arrivals(gap: int, first: str) -> None:
    early, late = Sample("early", 10, 0, [1], 1), Sample("late", 10 + gap, -1, [1], 1)
    plan = next_step([], [late, early], Paging(1, 2), max_num_batched_tokens=1, max_num_seqs=1, prefix_cache=True)
    assert rows(plan) == [(first, 1)]


@pytest.mark.parametrize(("patient", "urgent"), [(0, 0), (0, -1), (1, -1), (-2, -3)])
def test_a_sample_is_overtaken_by_no_more_arrivals_than_steps_of_priority_are_worth(patient: int, urgent: int) -> None:
    """One at a time is served, and for each that ends two more urgent ones arrive, for ever."""
    machine = Machine(seqs=1, tokens=1)
    machine.add("patient", [1], priority=patient, left=1)
    limit = PRIORITY_STEP * (patient - urgent)
    served = []
    for _ in range(limit + 10):
        for _ in range(2):
            machine.add(machine.num_added, [1], priority=urgent, left=1)
        served += [name for name, _ in machine.step()]
    assert served.index("patient") == max(0, limit - 1)


# Any history


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    seqs = draw(st.integers(1, 4))
    return Machine(
        blocks=draw(st.sampled_from([7, 8, 30])),
        block_size=2,
        tokens=draw(st.sampled_from([seqs, seqs + 1, 6, 20])),
        seqs=seqs,
        prefix_cache=draw(st.booleans()),
    )


@settings(max_examples=150)
@given(machines(), st.integers(0, 2**32 - 1), st.booleans())
def test_any_history(machine: Machine, seed: int, overlap: bool) -> None:
    """No sequence has more than 14 tokens, so that 7 blocks hold one."""
    chance = random.Random(seed)
    to_come = [chance.randint(0, 8) for _ in range(chance.randint(1, 8))]
    for step in range(400):
        for number in [number for number, at in enumerate(to_come) if at == step]:
            machine.add(
                number,
                [chance.randint(0, 1) for _ in range(chance.randint(1, 5))],
                priority=chance.choice((-1, 0, 0, 1)),
                left=chance.randint(1, 9),
                needs_last_token=chance.random() < 0.2,
                uses_prefix_cache=chance.random() < 0.8,
            )
        if step > 8 and not (machine.running or machine.waiting or machine.in_flight):
            break
        plan = check_plan(machine)
        while len(machine.in_flight) > overlap or (machine.in_flight and not plan.rows):
            machine.result(chance.randint(0, 1))
        if chance.random() < 0.1 and machine.running:
            machine.end(chance.choice(machine.running))
    else:
        pytest.fail("somebody starves")
    assert sorted(machine.paging.idle) == list(range(machine.paging.num_blocks)), "blocks were left behind"


def check_plan(machine: Machine) -> Plan:
    """Make a plan, and hold it to what the page promises."""
    ready = {sample.name: sample.num_lacking for sample in machine.running if sample.ready}
    before = {sample.name: sample.num_computed for sample in machine.running}
    waited = sorted(machine.waiting, key=lambda sample: sample.urgency)
    plan = machine.plan()
    paging = machine.paging

    counts = [count for _, count in plan.rows]
    assert all(counts) and sum(counts) <= machine.tokens
    assert len(machine.running) <= machine.seqs
    ran = names([sample for sample, _ in plan.rows])
    assert len(set(ran)) == len(ran), "a sample has one row"
    gone = names(plan.preempted)
    assert not set(gone) & set(ran)

    decoding = [name for name, lacking in ready.items() if lacking == 1 and name not in gone]
    assert set(decoding) <= set(ran), "who decodes is never left out"
    long_rows = [ready[name] > 1 for name in ran if name in ready]
    assert long_rows == sorted(long_rows), "who decodes is before who does not"
    for group in (decoding, [name for name in ready if name not in (*decoding, *gone)]):
        urgency = {sample.name: sample.urgency for sample in machine.running}
        in_order = [urgency[name] for name in ran if name in group]
        assert in_order == sorted(in_order)

    for victim in plan.preempted:
        assert all(sample.urgency < victim.urgency for sample in machine.running), "the least urgent went"
        assert victim in machine.waiting and victim.num_computed == 0 and victim.name not in paging.tables
    assert not (plan.preempted and plan.admitted)
    assert list(plan.admitted) == names(waited[: len(plan.admitted)]), "none out of turn"

    if machine.waiting and not plan.preempted and sum(counts) < machine.tokens and len(machine.running) < machine.seqs:
        head = min(machine.waiting, key=lambda sample: sample.urgency)
        reuses = machine.prefix_cache and head.uses_prefix_cache
        reused = paging.reusable(head.token_ids) if reuses else []
        assert head.num_in_flight or not paging.fits(reused, len(head.token_ids)), "there was room for one more"

    for sample in machine.running:
        assert len(paging.tables[sample.name]) >= paging.blocks_for(sample.num_computed), "what is computed has room"
        if sample.name in plan.admitted:
            assert plan.admitted[sample.name] < len(sample.token_ids), "one token at least is computed"
            assert plan.admitted[sample.name] == 0 or (machine.prefix_cache and sample.uses_prefix_cache)
        else:
            assert sample.num_computed == before[sample.name] + dict(zip(ran, counts, strict=True)).get(sample.name, 0)
    tables = [*paging.tables.values()]
    assert set(paging.tables) == set(names(machine.running))
    cached = [block for block in paging.idle if block in paging.stored.values()]
    free = [block for block in paging.idle if block not in cached]
    references = [sum(block in table for table in tables) for block in range(paging.num_blocks)]
    assert not conservation_errors(paging.num_blocks, free, cached, tables, references)
    return plan
