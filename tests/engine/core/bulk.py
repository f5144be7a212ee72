"""Traces by the thousand: greedy requests over an instantaneous model, and a loop of a few lines that says the tokens.

Everything that an engine decides is in them: chunks, blocks, the prefix cache, preemption, overlap, aborts, priorities.
The sampling chain, which is the runner's, is not.
"""

from __future__ import annotations

import random
from functools import cache

import numpy as np

from engine.core.engine import Engine
from engine.core.settings import EngineSettings
from reference.model.history_runner import HistoryModel, HistoryRunner
from reference.serving.request import Request, SamplingParams
from reference.serving.runner import NOT_SAMPLED, Batch, StepOutput
from tests.engine.core.lockstep import Lockstep
from tests.engine.core.tiny import BLOCK_SIZE, MAX_MODEL_LEN, check_and_poison, tiny_engine
from tests.engine.core.traces import TRUNKS, Arrival, play
from tests.reference.serving.fakes import EOS, NUM_TOKEN_IDS

BLOCKS = (MAX_MODEL_LEN // BLOCK_SIZE, MAX_MODEL_LEN // BLOCK_SIZE + 5, 200)
ENDS = 7  # one token in so many is the end-of-sequence id
MODEL = HistoryModel(128)


@cache
def next_token(history: tuple[int, ...]) -> int:
    return _token(MODEL.last_logits(history))


def _token(logits: np.ndarray) -> int:
    token_id = int(np.argmax(logits))
    return EOS if token_id % ENDS == 0 else token_id


def expected_tokens(request: Request) -> list[int]:
    """What a greedy request is answered with."""
    history = list(request.prompt_token_ids)
    limit = min(MAX_MODEL_LEN, len(history) + (request.params.max_tokens or MAX_MODEL_LEN))
    while len(history) < limit:
        history.append(next_token(tuple(history)))
        if history[-1] == EOS or history[-1] in request.params.stop_token_ids:
            break
    return history[len(request.prompt_token_ids) :]


class GreedyRunner(HistoryRunner):
    """The history runner without the chain: only greedy rows, no log-probabilities."""

    def _sampled(self, batch: Batch) -> StepOutput:
        token_ids = np.full(batch.num_rows, NOT_SAMPLED, np.int32)
        for row in np.flatnonzero(batch.sampling.samples).tolist():
            token_ids[row] = _token(self.model.logits(self._seed(batch, row, int(batch.seq_lens[row]))))
        return StepOutput(token_ids, None, None)


def random_trace(random: random.Random) -> list[Arrival]:
    trace = []
    for number in range(random.randint(1, 8)):
        trunk = random.choice(TRUNKS)[: random.randint(1, MAX_MODEL_LEN - 5)]
        prompt = trunk + tuple(random.choices(range(97, 100), k=random.randint(0, 4)))
        params = SamplingParams(
            temperature=0.0,
            n=random.choice((1, 1, 1, 2)),
            max_tokens=random.choice((None, 1, 2, 5, 12)),
            stop_token_ids=random.choice(((), (97, 98, 99, 100))),
        )
        at = random.randint(0, 12)
        aborted_at = at + random.randint(0, 12) if random.random() < 0.2 else None
        request = Request(f"r{number}", prompt, params, random.choice((0, 0, 0, -1, 2)))
        trace.append(Arrival(request, at, aborted_at))
    return trace


def random_settings(random: random.Random) -> EngineSettings:
    max_num_seqs = random.randint(1, 5)
    return EngineSettings(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=random.choice((max_num_seqs, max_num_seqs + 1, 7, 16, 512)),
        prefix_cache=random.random() < 0.7,
        overlap=random.random() < 0.7,
    )


def check_random_trace(seed: int, *, lockstep: bool = True) -> Engine:
    """Play the trace of a seed. Errors: AssertionError, or what the runner or the engine raise."""
    chance = random.Random(seed)
    trace, settings, num_blocks = random_trace(chance), random_settings(chance), chance.choice(BLOCKS)
    runner = GreedyRunner(MODEL, num_token_ids=NUM_TOKEN_IDS, num_blocks=num_blocks, block_size=BLOCK_SIZE)
    engine = tiny_engine(runner, settings)
    if lockstep:
        Lockstep(engine)

    played = play(engine, trace, after_step=lambda: check_and_poison(engine))
    for arrival in trace:
        request = arrival.request
        expected = expected_tokens(request)
        for index in range(request.params.n):
            outputs = played.outputs.get((request.request_id, index), [])
            tokens = [token_id for output in outputs for token_id in output.token_ids]
            if request.request_id in played.aborted:
                assert tokens == expected[: len(tokens)], (seed, request.request_id)
            else:
                assert tokens == expected, (seed, request.request_id, outputs[-1:])
    assert engine.pool.num_idle == num_blocks, "blocks were left behind"
    return engine
