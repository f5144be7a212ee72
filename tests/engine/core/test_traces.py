"""The engine against its specification, over an instantaneous model: thousands of traces a minute.

Outputs are equal, all of them, to the last bit; the plans of the scheduler are the specified ones; blocks are conserved
after every step; and what nobody holds is poisoned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from engine.core.engine import Engine
from engine.core.rows import Rows
from engine.core.sequence import Sequence
from engine.core.settings import EngineSettings
from reference.model.history_runner import HistoryModel, HistoryRunner
from reference.serving.runner import Sampling
from reference.serving.specification import Specification
from tests.engine.core.lockstep import Lockstep
from tests.engine.core.tiny import BLOCK_SIZE, MAX_MODEL_LEN, check_and_poison, tiny_engine
from tests.engine.core.traces import Arrival, Played, check_same, play, specified, traces
from tests.reference.serving.fakes import EOS, NUM_TOKEN_IDS, VOCAB_SIZE, decode

MODEL = HistoryModel(VOCAB_SIZE)
# Blocks of 4 tokens: what one sequence of full length needs, a little more, and plenty.
TINY, TIGHT, PLENTY = MAX_MODEL_LEN // BLOCK_SIZE, MAX_MODEL_LEN // BLOCK_SIZE + 5, 400


def engine_of(num_blocks: int, chosen: EngineSettings) -> Engine:
    runner = HistoryRunner(MODEL, num_token_ids=NUM_TOKEN_IDS, num_blocks=num_blocks, block_size=BLOCK_SIZE)
    return tiny_engine(runner, chosen)


def specification() -> Specification:
    return Specification(MODEL, decode, eos_token_ids=[EOS], num_token_ids=NUM_TOKEN_IDS, max_model_len=MAX_MODEL_LEN)


def check_trace(trace: list[Arrival], num_blocks: int, chosen: EngineSettings) -> Played:
    engine = engine_of(num_blocks, chosen)
    lockstep = Lockstep(engine)
    played = play(engine, trace, after_step=lambda: check_and_poison(engine))
    check_same(played, specified(specification(), trace))
    assert engine.pool.num_idle == num_blocks, "blocks were left behind"
    assert not engine.scheduler.running and not engine.scheduler.num_waiting
    assert sorted(engine._rows._slots) == list(range(chosen.max_num_seqs))
    assert lockstep.num_plans >= 1
    return played


@st.composite
def chosen_settings(draw: st.DrawFn) -> EngineSettings:
    max_num_seqs = draw(st.integers(1, 5))
    return EngineSettings(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=draw(st.sampled_from([max_num_seqs, max_num_seqs + 1, 7, 16, 512])),
        prefix_cache=draw(st.booleans()),
        overlap=draw(st.booleans()),
    )


ANY = given(trace=traces(), num_blocks=st.sampled_from([TINY, TIGHT, PLENTY]), chosen=chosen_settings())
# Without shrinking: at a third of a second an example it takes many minutes. tests/engine/core/test_bulk.py is quick.
UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], phases=UNSHRUNK)
@ANY
def test_any_trace(trace: list[Arrival], num_blocks: int, chosen: EngineSettings) -> None:
    check_trace(trace, num_blocks, chosen)


@pytest.mark.slow
@settings(max_examples=1000, suppress_health_check=[HealthCheck.too_slow], phases=UNSHRUNK)
@ANY
def test_any_trace_at_length(trace: list[Arrival], num_blocks: int, chosen: EngineSettings) -> None:
    check_trace(trace, num_blocks, chosen)


def runs_before_its_mask_is_known(patch: pytest.MonkeyPatch) -> None:
    """A sequence under a constraint does not sit out the step before the last token is known."""
    patch.setattr(Sequence, "ready", property(lambda self: self.num_output < self.budget))


def mask_is_left_out(patch: pytest.MonkeyPatch) -> None:
    """A constraint is followed, and not imposed."""
    sampling = Rows._sampling

    def planted(self: Rows, sequences: list[Sequence]) -> Sampling:
        of_rows = sampling(self, sequences)
        return replace(of_rows, mask_row=np.full_like(of_rows.mask_row, -1))

    patch.setattr(Rows, "_sampling", planted)


@pytest.mark.parametrize("plant", [runs_before_its_mask_is_known, mask_is_left_out])
def test_a_planted_fault_of_constraints_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """test_bulk.py plants the others; its runner reads no masks."""
    plant(monkeypatch)
    # Without its check of plans: the fault must show in what comes out.
    monkeypatch.setattr("tests.engine.core.test_traces.Lockstep", lambda engine: SimpleNamespace(num_plans=1))

    @settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.generate], database=None)
    @ANY
    def attempt(trace: list[Arrival], num_blocks: int, chosen: EngineSettings) -> None:
        check_trace(trace, num_blocks, chosen)

    with pytest.raises((AssertionError, ValueError)):
        attempt()
