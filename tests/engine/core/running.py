"""Engines over the history model, requests that run on them to their end, and what is specified of those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.core.engine import Engine
from engine.core.settings import EngineSettings
from reference.model.history_runner import HistoryModel, HistoryRunner
from reference.serving.request import Request, RequestOutput, SamplingParams
from reference.serving.specification import Specification
from tests.engine.core.tiny import BLOCK_SIZE, MAX_MODEL_LEN, check_conserved, tiny_engine
from tests.reference.serving.fakes import EOS, NUM_TOKEN_IDS, VOCAB_SIZE, decode

MODEL = HistoryModel(VOCAB_SIZE)

Outputs = dict[tuple[str, int], list[RequestOutput]]


def engine_of(
    *, num_blocks: int = 64, model: HistoryModel = MODEL, observer: Any = None, clock: Any = None, **settings: Any
) -> Engine:
    runner = HistoryRunner(model, num_token_ids=NUM_TOKEN_IDS, num_blocks=num_blocks, block_size=BLOCK_SIZE)
    options = {} if clock is None else {"clock": clock}
    return tiny_engine(runner, EngineSettings(**settings), observer=observer, **options)


def request(name: str = "r", prompt: Sequence[int] = (7,), priority: int = 0, **params: Any) -> Request:
    """Goes on to `max_tokens`, unless it says otherwise."""
    return Request(name, tuple(prompt), SamplingParams(**{"ignore_eos": True, "max_tokens": 6} | params), priority)


def finished(engine: Engine) -> Outputs:
    """Step to the end."""
    outputs: Outputs = {}
    while engine.has_work():
        for output in engine.step():
            outputs.setdefault((output.request_id, output.index), []).append(output)
    return outputs


def run(engine: Engine, *requests: Request) -> Outputs:
    for each in requests:
        engine.add(each)
    return finished(engine)


def specified(*requests: Request, model: HistoryModel = MODEL) -> Outputs:
    core = Specification(model, decode, eos_token_ids=[EOS], num_token_ids=NUM_TOKEN_IDS, max_model_len=MAX_MODEL_LEN)
    return run(core, *requests)  # type: ignore[arg-type]


def check_idle(engine: Engine) -> None:
    """Nothing is left of any request: no block, no slot, no work."""
    assert not engine.has_work() and engine.step() == []
    pool = engine.pool
    assert pool.num_idle == pool.num_blocks and not any(pool.references)
    check_conserved(engine)
    assert not engine.scheduler.running and not engine.scheduler.num_waiting
    assert sorted(engine._rows._slots) == list(range(engine.settings.max_num_seqs))


@dataclass
class Told:
    """An observer that keeps what it is told."""

    queued: list[float] = field(default_factory=list)
    lookups: list[tuple[int, int]] = field(default_factory=list)
    preemptions: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)

    def scheduled(self, queue_seconds: float) -> None:
        self.queued.append(queue_seconds)

    def prefix_lookup(self, num_tokens: int, num_cached: int) -> None:
        self.lookups.append((num_tokens, num_cached))

    def preempted(self) -> None:
        self.preemptions += 1

    def stepped(self, **numbers: Any) -> None:
        self.steps.append(numbers)
