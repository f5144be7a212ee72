"""`diptych bench launch`: how a row kernel's time depends on its launch, and how near the policy comes to the best.

RMSNorm stands for all kernels over rows: what it does between its load and its store costs less than either.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine.usage import UsageError
from optimized.compile.launch_policy import MAX_THREADS, WARP, RowLaunch, row_launch, vector_elements
from optimized.device import device_of
from optimized.kernels.rms_norm import RmsNorm
from parity.bench.gpu_timing import microseconds, sets_for

ROWS = (1, 8, 64, 256, 512, 1024, 4096, 32768)
LENGTHS = (128, 1024, 2048, 4096)


def main(arguments: Sequence[str]) -> int:
    """Measure, print a table, write JSON. Errors: UsageError."""
    parser = argparse.ArgumentParser("diptych bench launch", description=__doc__)
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, metavar="N")
    parser.add_argument("--length", nargs="+", type=int, default=LENGTHS, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    import torch

    if not torch.cuda.is_available():
        raise UsageError("diptych bench launch needs a GPU, and there is none here")
    table = Table("length", "rows", "best us", "best launch", "policy us", "policy's launch", "policy / best")
    records = []
    for length in options.length:
        for num_rows in options.rows:
            times, chosen = _times(length, num_rows)
            best = min(times, key=times.__getitem__)
            ratio = times[chosen] / times[best]
            table.add_row(
                str(length),
                str(num_rows),
                f"{times[best]:.2f}",
                _name(best),
                f"{times[chosen]:.2f}",
                _name(chosen),
                f"{ratio:.2f}",
            )
            times_by_name = {_name(launch): value for launch, value in times.items()}
            records.append({"length": length, "rows": num_rows, "policy": _name(chosen), "microseconds": times_by_name})
    Console(width=140).print(table)
    if options.json is not None:
        options.json.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
    return 0


def _name(launch: RowLaunch) -> str:
    return f"{launch.vectors}x{launch.vector} {launch.threads_per_row}x{launch.rows_per_block}"


def _launches(length: int, vector: int) -> Iterator[RowLaunch]:
    """All that cover a row, of 1 to 32 warps a block."""
    row_vectors = length // vector
    for vectors in (1, 2, 4, 8):
        threads = row_vectors // vectors
        if row_vectors % vectors or not 1 <= threads <= MAX_THREADS:
            continue
        for warps in (1, 2, 4, 8, 16, 32):
            if warps * WARP >= threads:
                yield RowLaunch(vector, vectors, threads, warps * WARP // threads)


def _times(length: int, num_rows: int) -> tuple[dict[RowLaunch, float], RowLaunch]:
    import torch

    def rows() -> torch.Tensor:
        return torch.randn(num_rows, length, dtype=torch.bfloat16, device="cuda")

    sets = [(rows(), rows()) for _ in range(sets_for(4 * length * num_rows))]
    weight = torch.randn(length, dtype=torch.bfloat16, device="cuda")
    device = device_of(weight)
    vector = vector_elements(device.arch, 2, length=length, strides=(length,), alignment=256)
    chosen = row_launch(device.num_sms, num_rows, length=length, vector=vector)
    kernels = {
        launch: RmsNorm(
            length,
            "bfloat16",
            "bfloat16",
            1e-6,
            0.0,
            launch.vector,
            launch.vectors,
            launch.threads_per_row,
            launch.rows_per_block,
        )
        for launch in {*_launches(length, vector), chosen}
    }
    times = {}
    for launch, kernel in kernels.items():
        calls = [lambda x=x, out=out, kernel=kernel: device.run(kernel, x, weight, out) for x, out in sets]
        times[launch] = microseconds(calls)
    return times, chosen
