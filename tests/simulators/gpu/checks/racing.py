"""What the tests of the race check share."""

from __future__ import annotations

import numpy as np

from simulators.gpu.checks.races import Races
from simulators.gpu.chip import H200
from simulators.gpu.gpu import Gpu
from simulators.gpu.watch import Finding
from tests.simulators.gpu.launching import kernel, run

TILE = ".shared .align 16 .b8 tile[1024];"


def races(body: str, *sizes: int, variables: str = TILE, seed: int | None = None, **launch: object) -> list[Finding]:
    """What is found when the body runs over zeroed arrays of u32."""
    arrays = [np.zeros(size, np.uint32) for size in sizes]
    gpu = Gpu(H200, seed=seed, watchers=[Races])
    return list(run(kernel(body, len(sizes), variables), arrays, gpu=gpu, **launch).findings)  # type: ignore[arg-type]


def only_race(findings: list[Finding]) -> Finding:
    """The one finding, or the first of those of the same two instructions; none of another kind."""
    assert findings and {one.kind for one in findings} == {"race"}, findings
    return findings[0]
