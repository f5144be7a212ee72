"""What the clocks' row of a block has columns for.

Its threads come first. Then come those that do what engines are asked for, each with times of its own: for each thread
what `cp.async` copies for it, and a few agents for all else. Then, for each thread once more, up to which time what it
did can be seen by the async proxy: where that is known, knowledge passed a proxy fence on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from simulators.gpu.machine.operation import Operation
from simulators.gpu.watch import Fenced

_AGENTS = 64  # of a block
_VIEWS: tuple[Fenced, ...] = get_args(Fenced)


@dataclass(frozen=True)
class Layout:
    """The first columns, `span` of them, are of what does accesses: a block's threads, their copies, and agents."""

    threads: int  # of a block
    has_copies: bool = False  # does the kernel use cp.async?
    agents: int = 0
    has_proxies: bool = False  # does anything of it work in the async proxy?

    @property
    def first_agent(self) -> int:
        return self.threads * (1 + self.has_copies)

    @property
    def has_engines(self) -> bool:
        return self.has_copies or self.agents > 0

    @property
    def span(self) -> int:
        return self.first_agent + self.agents

    def view(self, fenced: Fenced) -> int:
        """The first of the columns that say what a proxy fence for that has passed on."""
        return self.span + self.threads * _VIEWS.index(fenced)

    @property
    def width(self) -> int:
        return self.span + (self.threads * len(_VIEWS) if self.has_proxies else 0)

    @property
    def columns(self) -> tuple[int, ...]:
        """Of what a thread knows of itself: where each part begins, of all threads of a block. Its time comes first."""
        copies = (self.threads,) if self.has_copies else ()
        return 0, *copies, *((self.view(one) for one in _VIEWS) if self.has_proxies else ())


def layout_of(operations: Sequence[Operation], threads: int) -> Layout:
    """What the clocks of a kernel need. threads: of a block."""
    named = {(one.instruction.opcode, *one.instruction.modifiers) for one in operations}
    has_copies = any(one[:2] == ("cp", "async") and "bulk" not in one for one in named)
    has_proxies = any(one[0] == "wgmma" or (one[0] == "cp" and "bulk" in one) for one in named)
    has_agents = has_proxies or any(one[:2] in (("st", "async"), ("red", "async")) for one in named)
    return Layout(threads, has_copies, _AGENTS if has_agents else 0, has_proxies)
