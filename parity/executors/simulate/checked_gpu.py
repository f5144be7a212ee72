"""A simulated GPU that forgives nothing: what a check finds is a fault, and small launches may run in hostile order."""

from __future__ import annotations

from parity.executors.executor import Fault
from simulators.gpu.checks.races import Races
from simulators.gpu.checks.uninitialised import UninitialisedReads
from simulators.gpu.chip import Chip
from simulators.gpu.gpu import Gpu
from simulators.gpu.launch import Launch
from simulators.gpu.ptx.module import Module
from simulators.gpu.report import Report

HOSTILE_THREADS = 4096  # of a launch: with more of them, random order takes minutes, and finds little more
_TOLD = 3  # findings, at most, in one message


class CheckedGpu(Gpu):
    """`hostile_seed`: of the order in which small launches run from now on; None: the orderly one."""

    def __init__(self, chip: Chip) -> None:
        super().__init__(chip, watchers=(Races, UninitialisedReads))
        self.hostile_seed: int | None = None

    def launch(self, module: Module, launch: Launch) -> Report:
        """Errors: Fault for what the checks find, beside those of the simulator."""
        is_small = launch.num_blocks * launch.block_threads <= HOSTILE_THREADS
        self.seed = self.hostile_seed if is_small else None
        report = super().launch(module, launch)
        if report.findings:
            more = len(report.findings) - _TOLD
            lines = [str(finding) for finding in report.findings[:_TOLD]] + ([f"and {more} more"] if more > 0 else [])
            order = "" if self.seed is None else f" (hostile order, seed {self.seed})"
            raise Fault(f"{launch.kernel}{order}: " + "; ".join(lines))
        return report
