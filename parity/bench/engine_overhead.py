"""`diptych bench engine`: what a step costs beside the model, and what a large prefix cache costs.

The runner is a stand-in that answers at once with a fixed token, so all that is measured is the engine's own work:
planning, blocks, arrays, text, outputs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from array import array
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from engine.checkpoint import resolve_model
from engine.core.blocks import BlockPool
from engine.core.engine import Engine
from engine.core.prefix import extend_hashes
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence as Sample
from engine.core.settings import EngineSettings
from engine.core.text import TextStream
from engine.detokenize import detokenizers
from engine.tokenizer import Tokenizer
from reference.serving.request import Request, SamplingParams
from reference.serving.runner import NOT_SAMPLED, Batch, StepOutput

BLOCK_SIZE = 16


class Instant:
    """A runner that samples the same token everywhere, in no time."""

    def __init__(self, num_blocks: int, token_id: int) -> None:
        self.num_blocks, self.block_size, self.vocab_size = num_blocks, BLOCK_SIZE, 4096
        self._token_id = token_id
        self._batches: deque[Batch] = deque()

    def submit(self, batch: Batch) -> int:
        self._batches.append(batch)
        return 0

    def result(self, ticket: int) -> StepOutput:
        samples = self._batches.popleft().sampling.samples
        return StepOutput(np.where(samples, self._token_id, NOT_SAMPLED).astype(np.int32), None, None)

    def reset(self) -> None:
        self._batches.clear()


def main(arguments: Sequence[str]) -> int:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser("diptych bench engine", description="The engine's own milliseconds a step.")
    parser.add_argument("--running", nargs="+", type=int, default=[1, 8, 64, 256, 1024], metavar="N")
    parser.add_argument("--steps", type=int, default=200, metavar="N", help="(default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the records there")
    options = parser.parse_args(arguments)
    tokenizer = Tokenizer.from_directory(resolve_model("dense"))
    table = Table("running", "ms a step (median)", "99th", "us a sample", title="engine overhead, decode steps")
    records = []
    for running in options.running:
        times = sorted(step_times(tokenizer, running, options.steps))
        median, tail = statistics.median(times), times[int(0.99 * len(times))]
        records.append({"running": running, "median_ms": median * 1e3, "p99_ms": tail * 1e3})
        table.add_row(str(running), f"{median * 1e3:.3f}", f"{tail * 1e3:.3f}", f"{median / running * 1e6:.1f}")
    lookups = Table("cached blocks", "us a lookup of 256 blocks", title="prefix cache")
    for cached in (1_000, 100_000):
        seconds = lookup_time(cached)
        records.append({"cached_blocks": cached, "lookup_us": seconds * 1e6})
        lookups.add_row(f"{cached:,}", f"{seconds * 1e6:.1f}")
    Console().print(table, lookups)
    if options.json is not None:
        options.json.write_text(json.dumps(records, indent=1) + "\n")
    return 0


def step_times(tokenizer: Tokenizer, running: int, steps: int) -> list[float]:
    """Seconds of each step in which `running` samples decode."""
    max_model_len = 64 + steps + 8
    num_blocks = running * -(-max_model_len // BLOCK_SIZE)
    engine = Engine(
        Instant(num_blocks, tokenizer.encode(" the")[0]),
        detokenizers(tokenizer),
        eos_token_ids=(),
        num_token_ids=tokenizer.num_token_ids,
        max_model_len=max_model_len,
        settings=EngineSettings(max_num_seqs=running, max_num_batched_tokens=64 * running),
    )
    rng = np.random.default_rng(0)
    for number in range(running):
        prompt = tuple(rng.integers(0, 4000, 64).tolist())
        engine.add(Request(str(number), prompt, SamplingParams(temperature=0.0)))
    for _ in range(4):
        engine.step()
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        outputs = engine.step()
        times.append(time.perf_counter() - start)
        assert len(outputs) == running
    return times


def lookup_time(cached: int) -> float:
    """Seconds to look a prompt of 256 blocks up, all of them cached among so many."""
    pool = BlockPool(cached)
    scheduler = Scheduler(EngineSettings(), pool, BLOCK_SIZE)
    prompt = list(range(256 * BLOCK_SIZE + 1))
    for number in range(cached):
        block = pool.take()
        pool.store(block, str(number).encode())
        pool.release([block])
    sequence = _sequence(prompt)
    for number in range(256):
        block = pool.take()
        extend_hashes(sequence.hashes, prompt, BLOCK_SIZE, (number + 1) * BLOCK_SIZE)
        pool.store(block, sequence.hashes[number])
    times = []
    for _ in range(20):
        again = _sequence(prompt)
        start = time.perf_counter()
        found = scheduler._reusable(again)
        times.append(time.perf_counter() - start)
        assert len(found) == 256
    return statistics.median(times)


def _sequence(prompt: list[int]) -> Sample:
    request = Request("prompt", tuple(prompt), SamplingParams())
    text = TextStream.of(request.params, lambda _: None)  # type: ignore[arg-type, return-value]
    return Sample(request, 0, 0, 0.0, 1, text, None, array("i", prompt), [])
