"""An engine over the tiny vocabulary, and what must be true of its blocks at any time."""

from __future__ import annotations

from typing import Any

from engine.core.engine import Engine
from engine.core.settings import EngineSettings
from reference.serving.paging import conservation_errors
from reference.serving.runner import Runner
from tests.engine.core.vocabulary import detokenizer
from tests.reference.serving.fakes import EOS, NUM_TOKEN_IDS

BLOCK_SIZE, MAX_MODEL_LEN = 4, 40


def tiny_engine(runner: Runner, settings: EngineSettings, **options: Any) -> Engine:
    return Engine(
        runner,
        detokenizer,
        eos_token_ids=[EOS],
        num_token_ids=NUM_TOKEN_IDS,
        max_model_len=MAX_MODEL_LEN,
        settings=settings,
        **options,
    )


def check_conserved(engine: Engine) -> None:
    """Blocks are conserved, and counted rightly."""
    pool = engine.pool
    tables = [sequence.blocks for sequence in engine.scheduler.running]
    errors = conservation_errors(pool.num_blocks, pool.free, pool.cached, tables, pool.references)
    assert not errors, errors


def check_and_poison(engine: Engine) -> None:
    """The same; then what nobody holds is poisoned, by a runner that can."""
    check_conserved(engine)
    engine.runner.poison(engine.pool.free)  # type: ignore[attr-defined]
