"""What runs next: the policy of continuous batching, as one function of what is running and waiting.

Samples stand in one order, by urgency: the number of their arrival, plus PRIORITY_STEP for each step of priority. So a
sample is overtaken by a bounded number of later arrivals, whatever their priorities: none starves.

A step, for tokens up to `max_num_batched_tokens` and samples up to `max_num_seqs`:

1. every running sample needs blocks for its next token. The most urgent gets them first; where none is idle, the least
   urgent running sample is preempted: it gives its blocks up, and waits at its place in the order;
2. samples that lack one token (they decode) run first;
3. then those that lack more (prompts, and what was preempted) and those that wait, in one order, most urgent first,
   with as many tokens as the budget has left: a chunk. Waiting samples are admitted only if none was preempted, none
   out of turn, while there are blocks for all their known tokens. Each begins with what the prefix cache holds of it.

A token may be in flight: sampled by a batch whose result is not known yet. The next step can feed it to the model all
the same. It waits for the result where the sampled token decides what may follow (a constraint), where the sample
cannot go on (its budget is used up), and before a preempted sample is admitted again.
Sources: Orca (OSDI 2022); Sarathi-Serve's chunked prefill, arXiv:2403.02310; vLLM, arXiv:2309.06180.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from reference.serving.paging import Paging
from reference.serving.request import PRIORITY_STEP


@dataclass(eq=False)
class Sample:
    """One sample as the policy sees it."""

    name: Hashable
    arrival: int  # 0, 1, ... in the order samples were added
    priority: int
    token_ids: list[int]  # known: the prompt, and what was sampled
    num_left: int  # tokens that may still be sampled, those in flight not counted
    needs_last_token: bool = False  # under a constraint
    uses_prefix_cache: bool = True  # not where log-probabilities of the prompt are asked for
    num_pending: int = 0  # sampled, in flight
    num_computed: int = 0  # tokens whose keys and values are in memory, once every submitted batch has run
    num_in_flight: int = 0  # batches with a row of it

    @property
    def urgency(self) -> tuple[int, int]:
        return self.arrival + PRIORITY_STEP * self.priority, self.arrival

    @property
    def num_lacking(self) -> int:
        return len(self.token_ids) + self.num_pending - self.num_computed

    @property
    def ready(self) -> bool:
        return self.num_left > 0 and self.num_lacking > 0 and not (self.needs_last_token and self.num_pending)


@dataclass
class Plan:
    rows: list[tuple[Sample, int]] = field(default_factory=list)  # who runs, and how many tokens, in order
    preempted: list[Sample] = field(default_factory=list)
    admitted: dict[Hashable, int] = field(default_factory=dict)  # name -> tokens found in the prefix cache


def next_step(
    running: list[Sample],
    waiting: list[Sample],
    paging: Paging,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    prefix_cache: bool,
) -> Plan:
    """Plan a step. Samples move between the lists, and blocks between tables; `num_computed` counts the plan."""
    plan = Plan()
    running.sort(key=lambda sample: sample.urgency)

    for sample in list(running):
        if sample not in running or not sample.ready:
            continue
        while not paging.can_grow(sample.name, sample.num_computed + 1):
            victim = running.pop()
            give_up(victim, paging, prefix_cache)
            waiting.append(victim)
            plan.preempted.append(victim)
            if victim is sample:
                break
        if sample in running:
            paging.grow(sample.name, sample.num_computed + 1)

    ready = [sample for sample in running if sample.ready]
    budget = max_num_batched_tokens
    for sample in [sample for sample in ready if sample.num_lacking == 1]:
        budget -= _run(sample, budget, plan, paging, prefix_cache)

    waiting.sort(key=lambda sample: sample.urgency)
    longer = [sample for sample in ready if sample.num_lacking > 1]
    admits = not plan.preempted
    for sample in sorted(longer + waiting, key=lambda sample: sample.urgency):
        if sample in waiting:
            reuses = prefix_cache and sample.uses_prefix_cache
            reused = paging.reusable(sample.token_ids) if reuses else []
            fits = paging.fits(reused, len(sample.token_ids)) and not sample.num_in_flight
            admits = admits and budget > 0 and len(running) < max_num_seqs and fits
            if not admits:
                continue
            waiting.remove(sample)
            running.append(sample)
            paging.hold(sample.name, reused, len(sample.token_ids))
            sample.num_computed = len(reused) * paging.block_size
            plan.admitted[sample.name] = sample.num_computed
        budget -= _run(sample, budget, plan, paging, prefix_cache)
    return plan


def give_up(sample: Sample, paging: Paging, prefix_cache: bool) -> None:
    """Take a sample's blocks from it: it is preempted, has ended, or was aborted. The prefix cache keeps full ones."""
    if prefix_cache:
        paging.store(sample.name, sample.token_ids[: sample.num_computed])
    paging.release(sample.name)
    sample.num_computed = 0


def _run(sample: Sample, budget: int, plan: Plan, paging: Paging, prefix_cache: bool) -> int:
    num_tokens = min(sample.num_lacking, budget)
    if num_tokens:
        plan.rows.append((sample, num_tokens))
        sample.num_computed += num_tokens
        if prefix_cache:
            paging.store(sample.name, sample.token_ids[: sample.num_computed])
    return num_tokens
