"""All probes: those that an H200 answers, by family, and those of sm_100a, which are only assembled."""

from __future__ import annotations

from tests.simulators.gpu.vectors.families import (
    approximate,
    atomic,
    blackwell,
    collective,
    comparison,
    conversion,
    floating,
    integer,
    matrix,
)
from tests.simulators.gpu.vectors.probe import Probe

FAMILIES: dict[str, tuple[Probe, ...]] = {
    "integer": integer.PROBES,
    "floating": floating.PROBES,
    "approximate": approximate.PROBES,
    "comparison": comparison.PROBES,
    "conversion": conversion.PROBES,
    "collective": collective.PROBES,
    "matrix": matrix.PROBES,
    "atomic": atomic.PROBES,
}
PROBES = {probe.name: probe for probes in FAMILIES.values() for probe in probes}
UNVERIFIED = {probe.name: probe for probe in blackwell.PROBES}
