"""Which instructions were compared with a chip, and how near they came: the tables of docs/simulator.md.

`python -m tests.simulators.gpu.vectors.table` prints them; `--write FILE` puts them between the file's two marks.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import simulators.gpu.instructions
from simulators.gpu.semantics.table import RESOLVERS
from tests.simulators.gpu.vectors.accuracy import distance
from tests.simulators.gpu.vectors.probe import Accuracy, Probe
from tests.simulators.gpu.vectors.probes import FAMILIES, UNVERIFIED
from tests.simulators.gpu.vectors.simulated import elementwise_answers
from tests.simulators.gpu.vectors.store import Recording, kept, load

H200_ANSWERS = Path(__file__).parent / "h200.npz"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
TYPE = re.compile(r"(?:[busf]|bf|tf)(?:8|16|32|64|128)(?:x2)?|pred|u?e\dm\d(?:x2)?|[us][24]")
Row = Sequence[str]


def tables(recording: Recording) -> str:
    exact = [
        (family, *row)
        for family, probes in FAMILIES.items()
        for row in _by_opcode(probe for probe in probes if probe.accuracy is None)
    ]
    near = [_near(probe, recording) for probes in FAMILIES.values() for probe in probes if probe.accuracy is not None]
    head = ("instruction", "forms", "types", "modifiers")
    parts = [
        f"**Exact**: bit for bit as the {recording.facts['device']}, {_count(exact, 2)} forms.",
        _table(("family", *head), exact),
        f"**Within a bound**, {len(near)} forms. The bound is PTX's; the chip and the simulator may each be off by it.",
        _table(("instruction", "bound", "elements that differ", "worst, in bounds", "worst, in ULP"), near),
        f"**Not checked on a chip** (sm_100a alone has them): {len(UNVERIFIED)} forms, as the PTX manual says.",
        _table(head, _by_opcode(UNVERIFIED.values())),
        "**No probe is named after these**, which are known. Most are in kernels of other probes, twins or tests.",
        _lines([f"`{opcode}`" for opcode in _without_probe()]),
    ]
    return "\n\n".join(parts)


def _by_opcode(probes: Iterable[Probe]) -> list[Row]:
    of_opcode: dict[str, list[list[str]]] = defaultdict(list)
    for probe in probes:
        opcode, *modifiers = probe.name.split(" ")[0].split(".")
        of_opcode[opcode].append(modifiers)
    rows: list[Row] = []
    for opcode, forms in of_opcode.items():
        names = list(dict.fromkeys(name for modifiers in forms for name in modifiers))
        types = [name for name in names if TYPE.fullmatch(name)]
        others = [name for name in names if not TYPE.fullmatch(name)]
        rows.append((f"`{opcode}`", str(len(forms)), _listed(types), _listed(others)))
    return rows


def _near(probe: Probe, recording: Recording) -> Row:
    (chip,), (answer,) = recording.answers[probe.name], elementwise_answers(probe)
    found = distance(probe, chip, kept(answer))
    accuracy = probe.accuracy
    assert accuracy is not None
    # Where a bound is not of the size of an ULP, ULPs say nothing.
    says_ulps = not accuracy.absolute and found.worst_ulps < 10
    ulps = f"{found.worst_ulps:.0f}" if says_ulps else ""
    share = 100 * found.differing / found.count
    differ = "none" if share == 0 else "under 1 %" if share < 1 else f"{share:.0f} %"
    return f"`{probe.name}`", _bound(accuracy), differ, f"{2 * found.worst:.1f}", ulps


def _bound(accuracy: Accuracy) -> str:
    parts = [
        f"2^{math.log2(value):.4g} {kind}"
        for kind, value in (("relative", accuracy.relative), ("absolute", accuracy.absolute))
        if value
    ]
    within = f", up to {accuracy.within / math.pi:g} pi" if math.isfinite(accuracy.within) else ""
    return " or ".join(parts) + within


def _without_probe() -> list[str]:
    """Opcodes that the simulator knows and no probe is named after."""
    known = set(RESOLVERS)
    for module in iter_modules(simulators.gpu.instructions.__path__):
        known |= set(getattr(import_module(f"{simulators.gpu.instructions.__name__}.{module.name}"), "DECODERS", {}))
    every = (*(probe for probes in FAMILIES.values() for probe in probes), *UNVERIFIED.values())
    return sorted(known - {probe.name.split(".")[0] for probe in every})


def _lines(names: Sequence[str]) -> str:
    return textwrap.fill(", ".join(names) + ".", width=120)


def _count(rows: Iterable[Row], column: int) -> int:
    return sum(int(row[column]) for row in rows)


def _listed(names: Iterable[str]) -> str:
    return " ".join(f"`.{name}`" for name in names)


def _table(head: Row, rows: Iterable[Row]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_tables(text: str, recording: Recording) -> str:
    """A document with what stands between its marks made anew. Errors: ValueError where there are none."""
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"there are no marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{tables(recording)}\n\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE")
    file, recording = parser.parse_args(arguments).write, load(H200_ANSWERS)
    if file is None:
        print(tables(recording))
    else:
        file.write_text(with_tables(file.read_text(encoding="utf-8"), recording), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
