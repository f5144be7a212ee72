"""Fences. Memory here is sequentially consistent but for stores that a hostile schedule holds back, so a fence has work
only where such a schedule, or a check, is told of it. Source: PTX ISA, "membar, fence".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Operation, Straight
from simulators.gpu.machine.scope import Scope
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.watch import Fenced
from simulators.gpu.watch import Scope as Reach

_SCOPES: dict[str, Reach] = {"cta": "cta", "cluster": "cluster", "gpu": "gpu", "gl": "gpu", "sys": "sys"}
_KNOWN = ("sc", "acq_rel", "acquire", "release", "proxy", "mbarrier_init", "async", "alias", "tensormap::generic")
_ASYNC_SPACES = (
    "async.global",
    "async.shared::cta",
    "async.shared::cluster",
    "global",
    "shared::cta",
    "shared::cluster",
)


def _decode_fence(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    modifiers = instruction.modifiers
    for one in modifiers:
        known = one in _SCOPES or one in _KNOWN or one in _ASYNC_SPACES or one.startswith(("sync_restrict", "proxy"))
        if not known:
            raise UnsupportedInstruction(instruction, f"modifier .{one} is unknown")
    if "mbarrier_init" in modifiers:
        return Straight(instruction, _tell_of_objects)
    if "proxy" in modifiers:
        return Straight(instruction, partial(_tell_of_proxies, _fenced_by(modifiers)))
    named = [_SCOPES[one] for one in modifiers if one in _SCOPES]
    reach: Reach = named[0] if named else "gpu"

    def run(machine: Machine, threads: Threads) -> None:
        if machine.late_stores is not None and reach != "cta":
            machine.late_stores.let_out(machine.batch.slot[threads])
        for watcher in machine.watchers:
            watcher.fence(machine, threads, "acq_rel", reach)

    return Straight(instruction, run)


def _fenced_by(modifiers: Sequence[str]) -> Sequence[Fenced]:
    """For which memory an async proxy fence is; none for the other proxies."""
    if not any(one.startswith("async") for one in modifiers):
        return ()
    named = [one for one in modifiers if "shared::" in one or one.removeprefix("async.") == "global"]
    if not named:
        return "shared", "global", "mbarrier"
    return ("shared", "mbarrier") if "shared::" in named[0] else ("global",)


def _tell_of_proxies(fenced: Sequence[Fenced], machine: Machine, threads: Threads) -> None:
    """Proxies share one memory here, so nothing has to be made visible from one to the other: a copy sees, and comes
    after, what its block has stored. Those who watch know better."""
    for watcher in machine.watchers if fenced else ():
        watcher.proxy_fence(machine, threads, fenced)


def _tell_of_objects(machine: Machine, threads: Threads) -> None:
    """.mbarrier_init releases new mbarrier objects to the cluster, by a relaxed arrival at its barrier. Those who watch
    take it for a fence of everything; the async proxy sees the objects alone."""
    for watcher in machine.watchers:
        watcher.proxy_fence(machine, threads, ("mbarrier",))
        watcher.fence(machine, threads, "release", "cluster")


DECODERS = {"fence": _decode_fence, "membar": _decode_fence}
