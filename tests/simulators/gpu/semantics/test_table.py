"""What the table knows, and what is for others."""

from __future__ import annotations

import pytest

from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.semantics.table import RESOLVERS, elementwise_of
from tests.simulators.gpu.semantics.instructions import instruction


@pytest.mark.parametrize("name", ["ld.global.b32", "bar.sync", "shfl.sync.bfly.b32", "cvta.to.global.u64", "bra.uni"])
def test_opcodes_of_others(name: str) -> None:
    assert elementwise_of(instruction(name)) is None


@pytest.mark.parametrize("opcode", sorted(RESOLVERS))
def test_an_unknown_modifier_or_type_is_refused(opcode: str) -> None:
    for ending in ("b7", "odd.b32", "f128"):
        with pytest.raises(UnsupportedInstruction, match=opcode):
            elementwise_of(instruction(f"{opcode}.{ending}"))
