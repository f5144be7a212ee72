"""The engine over real models, dense and mixture of experts, against the specification: rung 2 of the design.

{chunk size} x {prefix cache} x {overlap} x {KV plenty, tight, tiny} x {dense, MoE} x {greedy, sampled} x {aborts,
priorities}. float32. KV memory is NaN to begin with, and whatever no sample holds becomes NaN again after every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from engine.core.settings import EngineSettings
from reference.formats import Array
from reference.model.paged_runner import PagedRunner
from reference.model.runner import JaxRunner
from reference.serving.runner import Batch, StepOutput
from reference.serving.served_model import ServedModel
from tests.engine.core.rung2 import Judgement, judge
from tests.engine.core.tiny import BLOCK_SIZE, MAX_MODEL_LEN, check_and_poison, tiny_engine
from tests.engine.core.traces import Arrival, play, traces
from tests.reference.model.models import random_checkpoint
from tests.reference.serving.fakes import EOS, NUM_TOKEN_IDS, VOCAB_SIZE, decode

NEEDED = MAX_MODEL_LEN // BLOCK_SIZE
BLOCKS = {"tiny": NEEDED, "tight": NEEDED + 5, "plenty": 64}
# Layers are the runner's affair: test_paged_runner.py has two of a mixture of experts, which take long to compile.
MODELS: Mapping[str, tuple[str, int]] = {"dense": ("qwen3", 2), "moe": ("qwen3_moe", 1)}


class OneLength:
    """Whole sequences, padded to one length, so that it alone is compiled; what follows a token has no effect on it."""

    def __init__(self, whole: JaxRunner) -> None:
        self.whole = whole

    def last_logits(self, token_ids: Sequence[int]) -> Array:
        return [*self.all_logits(token_ids)][-1]

    def all_logits(self, token_ids: Sequence[int]) -> Iterable[Array]:
        filled = [*token_ids, *[0] * (MAX_MODEL_LEN - len(token_ids))]
        return islice(self.whole.all_logits(filled), len(token_ids))


@cache
def models(name: str) -> tuple[ServedModel, PagedRunner]:
    """One random model, as the specification sees it and behind the seam. Compiled once for all tests."""
    model_type, num_layers = MODELS[name]
    config, tensors = random_checkpoint(model_type, vocab_size=VOCAB_SIZE, num_hidden_layers=num_layers)
    whole = JaxRunner(config, tensors, max_model_len=MAX_MODEL_LEN)
    runner = PagedRunner(
        config,
        tensors,
        num_token_ids=NUM_TOKEN_IDS,
        max_model_len=MAX_MODEL_LEN,
        num_blocks=max(BLOCKS.values()),
        block_size=BLOCK_SIZE,
    )
    return ServedModel(OneLength(whole), decode, frozenset({EOS}), NUM_TOKEN_IDS, MAX_MODEL_LEN), runner


@jax.jit
def _poisoned(kv: list[tuple[Array, Array]], blocks: Array) -> list[tuple[Array, Array]]:
    return jax.tree.map(lambda cache: jnp.where(blocks[:, None, None, None], jnp.nan, cache), kv)


class FewerBlocks:
    """The same runner with less memory, so that nothing is compiled anew; and with NaN in what is not held."""

    def __init__(self, runner: PagedRunner, num_blocks: int) -> None:
        self.runner, self.num_blocks = runner, num_blocks
        self.block_size, self.vocab_size = runner.block_size, runner.vocab_size
        runner.reset()
        self.poison(range(runner.num_blocks))

    def submit(self, batch: Batch) -> int:
        assert batch.block_table.max() < self.num_blocks
        return self.runner.submit(batch)

    def result(self, ticket: int) -> StepOutput:
        return self.runner.result(ticket)

    def reset(self) -> None:
        self.runner.reset()

    def poison(self, blocks: Iterable[int]) -> None:
        mask = np.zeros(self.runner.num_blocks, np.bool_)
        mask[list(blocks)] = True
        self.runner.kv = _poisoned(self.runner.kv, mask)


def check(name: str, trace: list[Arrival], num_blocks: int, chosen: EngineSettings, judgement: Judgement) -> None:
    served, paged = models(name)
    runner = FewerBlocks(paged, num_blocks)
    engine = tiny_engine(runner, chosen)
    played = play(engine, trace, after_step=lambda: check_and_poison(engine))
    for arrival in trace:
        request = arrival.request
        for index in range(request.params.n):
            outputs = played.outputs.get((request.request_id, index), [])
            judge(served, request, index, outputs, judgement)
            if request.request_id not in played.aborted:
                assert outputs[-1].finish_reason is not None
    assert engine.pool.num_idle == num_blocks, "blocks were left behind"


@st.composite
def chosen_settings(draw: st.DrawFn) -> EngineSettings:
    return EngineSettings(
        max_num_seqs=draw(st.sampled_from([1, 2, 4])),
        max_num_batched_tokens=draw(st.sampled_from([4, 7, 16, 40])),
        prefix_cache=draw(st.booleans()),
        overlap=draw(st.booleans()),
    )


def run_matrix(name: str, examples: int) -> Judgement:
    judgement = Judgement()

    # Without shrinking: at a second an example it takes many minutes, and says little more than the trace that failed.
    @settings(
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow],
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
    )
    @given(trace=traces(max_requests=5), num_blocks=st.sampled_from([*BLOCKS.values()]), chosen=chosen_settings())
    def property_(trace: list[Arrival], num_blocks: int, chosen: EngineSettings) -> None:
        check(name, trace, num_blocks, chosen, judgement)

    property_()
    return judgement


@pytest.mark.parametrize("name", MODELS)
def test_matrix(name: str) -> None:
    judgement = run_matrix(name, examples=8)
    assert judgement.tokens > 100, "the traces were too short to say anything"
    assert judgement.near_ties <= judgement.tokens // 100, judgement


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_matrix_at_length(name: str) -> None:
    judgement = run_matrix(name, examples=400)
    assert judgement.near_ties <= judgement.tokens // 100, judgement
