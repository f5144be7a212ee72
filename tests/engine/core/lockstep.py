"""The specified scheduler beside the engine's: the same events go to both, and their plans must be the same."""

from __future__ import annotations

from collections.abc import Hashable

from engine.core.engine import Engine, _InFlight
from engine.core.scheduler import Plan
from engine.core.sequence import Sequence
from reference.serving.paging import Paging
from reference.serving.schedule import Sample, give_up, next_step


class Lockstep:
    """Follows an engine: `planned` after each of its plans, `applied` after each result, `removed` as samples end."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.paging = Paging(engine.pool.num_blocks, engine.runner.block_size)
        self.samples: dict[Hashable, Sample] = {}
        self.running: list[Sample] = []
        self.waiting: list[Sample] = []
        self.num_plans = 0
        self._watch()

    def _watch(self) -> None:
        engine, scheduler = self.engine, self.engine.scheduler
        plan, add, remove = scheduler.plan, scheduler.add, scheduler.remove
        apply = engine._take_result

        def watched_add(sequence: Sequence) -> None:
            if name(sequence) not in self.samples:
                self._add(sequence)
            add(sequence)

        def watched_plan() -> Plan:
            made = plan()
            self._compare(made)
            return made

        def watched_remove(sequence: Sequence) -> None:
            self._remove(sequence)
            remove(sequence)

        def watched_apply() -> list:
            self._arrive(engine._in_flight[0])
            return apply()

        scheduler.plan, scheduler.add, scheduler.remove = watched_plan, watched_add, watched_remove  # type: ignore[method-assign]
        engine._take_result = watched_apply  # type: ignore[method-assign]

    def _add(self, sequence: Sequence) -> None:
        params = sequence.params
        sample = Sample(
            name(sequence),
            sequence.arrival,
            sequence.request.priority,
            sequence.tokens,  # the engine's own list: tokens are known to both at once
            num_left=sequence.budget,
            needs_last_token=params.constraint is not None,
            uses_prefix_cache=params.prompt_logprobs is None,
        )
        self.samples[sample.name] = sample
        self.waiting.append(sample)

    def _compare(self, made: Plan) -> None:
        settings = self.engine.settings
        specified = next_step(
            self.running,
            self.waiting,
            self.paging,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
            prefix_cache=settings.prefix_cache,
        )
        assert [(name(sequence), count) for sequence, count in made.rows] == [
            (sample.name, count) for sample, count in specified.rows
        ]
        assert [name(sequence) for sequence in made.preempted] == [sample.name for sample in specified.preempted]
        assert {name(sequence): cached for sequence, cached in made.admitted} == specified.admitted
        for sample, _ in specified.rows:
            sample.num_in_flight += 1
            if sample.num_lacking == 0:
                sample.num_pending += 1
                sample.num_left -= 1
        self.num_plans += 1

    def _arrive(self, done: _InFlight) -> None:
        samples = done.batch.sampling.samples.tolist()
        for (sequence, _), sampled in zip(done.rows, samples, strict=True):
            sample = self.samples[name(sequence)]
            sample.num_in_flight -= 1
            sample.num_pending -= sampled

    def _remove(self, sequence: Sequence) -> None:
        sample = self.samples[name(sequence)]
        if sample in self.running:
            self.running.remove(sample)
            give_up(sample, self.paging, self.engine.settings.prefix_cache)
        else:
            self.waiting.remove(sample)


def name(sequence: Sequence) -> Hashable:
    return sequence.request.request_id, sequence.index, sequence.arrival
