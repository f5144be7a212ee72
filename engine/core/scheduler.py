"""What runs next. The policy is that of `reference/serving/schedule.py`, in data structures that do not search.

Waiting sequences stand in a heap, running ones in a sorted list, both by urgency; those that ended while they waited
are dropped when they come to the top, or when they are the most of the heap.
"""

from __future__ import annotations

import heapq
from bisect import insort
from dataclasses import dataclass, field
from operator import attrgetter

from engine.core.blocks import BlockPool
from engine.core.prefix import extend_hashes
from engine.core.sequence import Sequence
from engine.core.settings import EngineSettings

URGENCY = attrgetter("urgency")


@dataclass
class Plan:
    """A step: who runs and how many tokens, and what happened on the way there."""

    rows: list[tuple[Sequence, int]] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    admitted: list[tuple[Sequence, int]] = field(default_factory=list)  # and its tokens found in the prefix cache
    admits: bool = True  # not once one was preempted, or the next that waits found no room


class Scheduler:
    """Running and waiting sequences, and the blocks that they hold."""

    def __init__(self, settings: EngineSettings, pool: BlockPool, block_size: int) -> None:
        self.settings = settings
        self.pool = pool
        self.block_size = block_size
        self.running: list[Sequence] = []  # the most urgent first
        self._waiting: list[tuple[tuple[int, int], Sequence]] = []  # a heap
        self.num_waiting = 0

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn."""
        heapq.heappush(self._waiting, (sequence.urgency, sequence))
        self.num_waiting += 1

    def remove(self, sequence: Sequence) -> None:
        """A sequence has ended: its blocks are given up. It is marked `ended`."""
        sequence.ended = True
        if sequence.blocks:
            self.running.remove(sequence)
            self._give_up(sequence)
        else:
            self.num_waiting -= 1
            if len(self._waiting) > 2 * self.num_waiting:
                self._waiting = [entry for entry in self._waiting if not entry[1].ended]
                heapq.heapify(self._waiting)

    def plan(self) -> Plan:
        """The next step. `num_computed` of its sequences counts it as done."""
        plan = Plan()
        block_size = self.block_size
        ready = [sequence for sequence in self.running if sequence.ready]
        for sequence in ready:
            # One that was preempted for another has no blocks.
            if sequence.num_computed >= len(sequence.blocks) * block_size and sequence.blocks:
                self._grow(sequence, plan)
        decoding: list[Sequence] = []
        longer: list[Sequence] = []
        for sequence in ready:
            if sequence.blocks:
                (decoding if sequence.num_lacking == 1 else longer).append(sequence)
        budget = self.settings.max_num_batched_tokens
        budget -= self._run(decoding, budget, plan)
        for sequence in longer:
            budget -= self._admit(budget, plan, before=sequence)
            budget -= self._run([sequence], budget, plan)
        self._admit(budget, plan)
        return plan

    def _grow(self, sequence: Sequence, plan: Plan) -> None:
        """Get a block for the next token; the least urgent give theirs up for it, itself perhaps."""
        while not self.pool.num_idle:
            victim = self.running.pop()
            self._give_up(victim)
            self.add(victim)
            plan.preempted.append(victim)
            plan.admits = False
            if victim is sequence:
                return
        sequence.blocks.append(self.pool.take())

    def _run(self, sequences: list[Sequence], budget: int, plan: Plan) -> int:
        """Give sequences, in order, what the budget has left. Returns what was used of it."""
        used = 0
        for sequence in sequences:
            num_tokens = min(sequence.num_lacking, budget - used)
            if not num_tokens:
                break
            plan.rows.append((sequence, num_tokens))
            sequence.num_computed += num_tokens
            if sequence.num_computed >= (sequence.num_stored + 1) * self.block_size:
                self._store(sequence)
            used += num_tokens
        return used

    def _admit(self, budget: int, plan: Plan, before: Sequence | None = None) -> int:
        """Admit and run what waits and is more urgent than another. Returns what was used of the budget."""
        left = budget
        while left and plan.admits and len(self.running) < self.settings.max_num_seqs:
            head = self._head()
            if head is None or (before is not None and before.urgency < head.urgency):
                break
            reused = self._reusable(head)
            num_new = -(-len(head.tokens) // self.block_size) - len(reused)
            # What a preempted sequence has in flight is one of its tokens, so its length is not known yet.
            if head.num_in_flight or num_new > self.pool.num_idle - self.pool.num_idle_of(reused):
                plan.admits = False
                break
            heapq.heappop(self._waiting)
            self.num_waiting -= 1
            for block in reused:
                self.pool.hold(block)
            head.blocks = reused + [self.pool.take() for _ in range(num_new)]
            head.num_stored = len(reused)
            head.num_computed = len(reused) * self.block_size
            insort(self.running, head, key=URGENCY)
            plan.admitted.append((head, head.num_computed))
            left -= self._run([head], left, plan)
        return budget - left

    def _head(self) -> Sequence | None:
        while self._waiting and self._waiting[0][1].ended:
            heapq.heappop(self._waiting)
        return self._waiting[0][1] if self._waiting else None

    def _reusable(self, sequence: Sequence) -> list[int]:
        """Cached blocks that the sequence begins with. Its last token is computed in any case."""
        blocks: list[int] = []
        if not (self.settings.prefix_cache and sequence.uses_prefix_cache):
            return blocks
        self._hash(sequence, len(sequence.tokens))
        for block_hash in sequence.hashes[: (len(sequence.tokens) - 1) // self.block_size]:
            block = self.pool.find(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _store(self, sequence: Sequence) -> None:
        """Offer the full blocks of known tokens to the prefix cache. Batches run in order, and a batch writes before it
        reads, so whoever is planned from here on finds them written."""
        if not self.settings.prefix_cache:
            return
        num_full = min(sequence.num_computed, len(sequence.tokens)) // self.block_size
        if num_full <= sequence.num_stored:
            return
        self._hash(sequence, num_full * self.block_size)
        for number in range(sequence.num_stored, num_full):
            self.pool.store(sequence.blocks[number], sequence.hashes[number])
        sequence.num_stored = num_full

    def _hash(self, sequence: Sequence, num_tokens: int) -> None:
        """Let the hashes of a sequence reach all full blocks of its first tokens; a prompt is hashed once."""
        if not sequence.hashes:
            extend_hashes(sequence.prompt_hashes, sequence.tokens, self.block_size, sequence.num_prompt)
            sequence.hashes = sequence.prompt_hashes.copy()
        extend_hashes(sequence.hashes, sequence.tokens, self.block_size, num_tokens)

    def _give_up(self, sequence: Sequence) -> None:
        self._store(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.num_stored = sequence.num_computed = 0
