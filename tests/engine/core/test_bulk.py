"""Random traces, thousands with the slow ones; and faults planted in the engine, each caught by a few of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from engine.core.blocks import BlockPool
from engine.core.engine import Engine, _InFlight
from engine.core.rows import Rows
from engine.core.scheduler import Plan, Scheduler
from engine.core.sequence import Sequence
from reference.serving.request import RequestOutput
from reference.serving.runner import Batch
from tests.engine.core.bulk import check_random_trace

ENOUGH = 300  # traces in which a fault must show


@pytest.mark.parametrize("block", [*range(4), *(pytest.param(block, marks=pytest.mark.slow) for block in range(4, 8))])
def test_random_traces(block: int) -> None:
    for seed in range(block * 100, block * 100 + 100):
        check_random_trace(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_traces(block: int) -> None:
    for seed in range(10_000 + block * 1000, 10_000 + block * 1000 + 1000):
        check_random_trace(seed)


Plant = Callable[[pytest.MonkeyPatch], None]


def freed_early(patch: pytest.MonkeyPatch) -> None:
    """The first block of a sequence goes back to the pool as soon as its prompt is computed."""
    run = Scheduler._run

    def planted(self: Scheduler, sequences: list[Sequence], budget: int, plan: Plan) -> int:
        used = run(self, sequences, budget, plan)
        for sequence in sequences:
            if sequence.num_output == 3 and len(sequence.blocks) > 1 and self.pool.references[sequence.blocks[0]] == 1:
                self.pool.release(sequence.blocks[:1])
        return used

    patch.setattr(Scheduler, "_run", planted)


def stale_slot(patch: pytest.MonkeyPatch) -> None:
    """A slot keeps the block table of the sequence that had it before."""
    enter = Rows.enter

    def planted(self: Rows, sequence: Sequence) -> None:
        enter(self, sequence)
        slot = sequence.slot
        written = int((self._tables[slot] >= 0).sum())
        self._table_lens[slot] = min(written, len(sequence.blocks))

    patch.setattr(Rows, "enter", planted)


def off_by_one_at_a_chunks_end(patch: pytest.MonkeyPatch) -> None:
    """A chunk that ends inside a prompt counts one token too many."""
    run = Scheduler._run

    def planted(self: Scheduler, sequences: list[Sequence], budget: int, plan: Plan) -> int:
        used = run(self, sequences, budget, plan)
        for sequence in sequences:
            if sequence.num_lacking > 1 and any(row[0] is sequence and row[1] > 1 for row in plan.rows):
                sequence.num_computed += 1
        return used

    patch.setattr(Scheduler, "_run", planted)


def samples_before_the_prompt_ends(patch: pytest.MonkeyPatch) -> None:
    """The last chunk but one samples, if a single token is left."""
    sampling = Rows._sampling

    def planted(self: Rows, sequences: list[Sequence]):  # type: ignore[no-untyped-def]
        made = sampling(self, sequences)
        made.samples[:] |= np.array([sequence.num_lacking == 1 for sequence in sequences])
        return made

    patch.setattr(Rows, "_sampling", planted)


def late_result_after_an_abort(patch: pytest.MonkeyPatch) -> None:
    """What was in flight is applied to a sequence that has ended."""

    def planted(self: Engine) -> list[RequestOutput]:
        done: _InFlight = self._in_flight[0]
        for sequence, _ in done.rows:
            if sequence.ended:
                sequence.ended = False
                self._requests.setdefault(sequence.request.request_id, []).append(sequence)
                self.scheduler.add(sequence)
        return take(self)

    take = Engine._take_result
    patch.setattr(Engine, "_take_result", planted)


def whole_prompt_from_the_cache(patch: pytest.MonkeyPatch) -> None:
    """A prompt that is cached to its last token is not computed at all."""
    reusable = Scheduler._reusable

    def planted(self: Scheduler, sequence: Sequence) -> list[int]:
        blocks = reusable(self, sequence)
        size = self.block_size
        if (
            self.settings.prefix_cache
            and len(sequence.tokens) == (len(blocks) + 1) * size == len(sequence.hashes) * size
        ):
            last = self.pool.find(sequence.hashes[-1])
            blocks += [] if last is None else [last]
        return blocks

    patch.setattr(Scheduler, "_reusable", planted)


def stores_what_is_not_computed(patch: pytest.MonkeyPatch) -> None:
    """A block enters the prefix cache when its tokens are known, computed or not."""
    store = Scheduler._store

    def planted(self: Scheduler, sequence: Sequence) -> None:
        computed = sequence.num_computed
        sequence.num_computed = min(len(sequence.tokens), len(sequence.blocks) * self.block_size)
        store(self, sequence)
        sequence.num_computed = computed

    patch.setattr(Scheduler, "_store", planted)


def hash_of_the_block_alone(patch: pytest.MonkeyPatch) -> None:
    """A block is named by its own tokens, and not by those before."""

    def planted(hashes: list[bytes], token_ids: list[int], block_size: int, num_tokens: int) -> None:
        for begin in range(len(hashes) * block_size, num_tokens - block_size + 1, block_size):
            hashes.append(repr(token_ids[begin : begin + block_size]).encode())

    patch.setattr("engine.core.scheduler.extend_hashes", planted)


def forgets_no_hash(patch: pytest.MonkeyPatch) -> None:
    """A cached block that is given to someone else can still be found."""

    def planted(self: BlockPool) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block, _ = self._cached.popitem(last=False)
        self.references[block] = 1
        return block

    patch.setattr(BlockPool, "take", planted)


def blocks_left_behind(patch: pytest.MonkeyPatch) -> None:
    """A preempted sequence keeps a block."""
    give_up = Scheduler._give_up

    def planted(self: Scheduler, sequence: Sequence) -> None:
        if not sequence.ended and len(sequence.blocks) > 1:
            sequence.blocks.pop()
        give_up(self, sequence)

    patch.setattr(Scheduler, "_give_up", planted)


def pending_token_of_another_row(patch: pytest.MonkeyPatch) -> None:
    """Under overlap, a row takes the token that its neighbour sampled."""
    batch_of = Rows.batch

    def planted(self: Rows, rows: list[tuple[Sequence, int]]) -> Batch:
        batch = batch_of(self, rows)
        batch.token_ids[batch.token_ids < -1] += 1
        return batch

    patch.setattr(Rows, "batch", planted)


FAULTS: list[Plant] = [
    freed_early,
    stale_slot,
    off_by_one_at_a_chunks_end,
    samples_before_the_prompt_ends,
    late_result_after_an_abort,
    whole_prompt_from_the_cache,
    stores_what_is_not_computed,
    hash_of_the_block_alone,
    forgets_no_hash,
    blocks_left_behind,
    pending_token_of_another_row,
]


@pytest.mark.parametrize("lockstep", [True, False], ids=["with the specified plans", "by what comes out"])
@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_caught(plant: Plant, lockstep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    seeds: Iterator[int] = itertools.islice(itertools.count(), ENOUGH)
    for seed in seeds:
        try:
            check_random_trace(seed, lockstep=lockstep)
        except Exception:  # of any kind: the runner refuses a batch, a token differs, blocks are missing
            return
    pytest.fail(f"{plant.__doc__} Nobody noticed in {ENOUGH} traces.")
