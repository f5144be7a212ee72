"""Samples and requests that begin alike share blocks, and are answered as if they were alone."""

from __future__ import annotations

import random
from hashlib import blake2b
from typing import Any

import pytest

from tests.engine.core.running import Told, engine_of, finished, request, run, specified
from tests.engine.core.tiny import BLOCK_SIZE
from tests.reference.serving.fakes import tokens_of


@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_of_a_prompt_wholly_in_the_cache_the_last_block_is_computed_anew(blocks: int) -> None:
    told = Told()
    engine = engine_of(observer=told)
    prompt = range(60, 60 + blocks * BLOCK_SIZE)
    first, second = request("a", prompt), request("b", prompt)
    assert run(engine, first) == specified(first)
    assert run(engine, second) == specified(second)
    assert told.lookups[1] == (len(prompt), len(prompt) - BLOCK_SIZE)


def test_samples_of_one_prompt_share_its_blocks_and_draw_apart() -> None:
    engine = engine_of()
    asked = request(n=4, prompt=range(60, 73), max_tokens=8, seed=11)
    engine.add(asked)
    engine.step()
    tables = [sequence.blocks for sequence in engine.scheduler.running]
    assert len(tables) == 4 and all(table[:3] == tables[0][:3] for table in tables)
    assert [engine.pool.references[block] for block in tables[0]] == [4, 4, 4, 1]
    assert len({table[3] for table in tables}) == 4
    outputs = finished(engine)
    streams = [tuple(tokens_of(outputs["r", index])) for index in range(4)]
    assert len(set(streams)) == 4, "four distinct ones"
    assert outputs == specified(asked) == run(engine_of(), asked), "and the same whenever it is asked"


def test_the_samples_of_a_request_hash_its_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []

    def counted(*args: Any, **options: Any) -> Any:
        hashed.append(1)
        return blake2b(*args, **options)

    monkeypatch.setattr("engine.core.prefix.blake2b", counted)
    engine = engine_of(num_blocks=200, max_num_seqs=8)
    finished_ = run(engine, request("r", range(60, 60 + 6 * BLOCK_SIZE), n=8, max_tokens=2))
    assert len(finished_) == 8 and len(hashed) == 6


def test_a_seeded_request_keeps_its_tokens_in_any_company() -> None:
    asked = request("seeded", range(60, 75), max_tokens=9, seed=2**63 + 5, n=2)
    alone = run(engine_of(), asked)
    chance = random.Random(1)
    for max_num_batched_tokens in (4, 7, 64):
        engine = engine_of(num_blocks=16, max_num_seqs=4, max_num_batched_tokens=max_num_batched_tokens)
        for number in range(6):
            engine.add(request(f"{number}", range(60, 60 + 4 * number + 1), seed=chance.getrandbits(64), max_tokens=9))
            if number == 3:
                engine.add(asked)
        outputs = finished(engine)
        assert [outputs["seeded", index] for index in (0, 1)] == [alone["seeded", 0], alone["seeded", 1]]
