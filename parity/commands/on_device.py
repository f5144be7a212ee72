"""Cases on the GPU at hand, one after another, in a process of its own.

A case that does not end, that kills the process, or that leaves its GPU unusable takes that process with it: it has
failed, and the next case is tried in a new one.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection

from engine.usage import UsageError
from optimized.compile.arch import Arch
from parity import cases
from parity.commands.tried import Spread, gathered, tried
from parity.executors.executor import Executor, Skip
from parity.harness import record_of
from parity.record import Record
from parity.report.histogram import Histograms
from parity.twin import Config, Twin

SECONDS = 300.0  # that a case may take: its inputs, the reference, compiling and both calls
START_SECONDS = 300.0  # that a process may take to begin with
CONTEXT = get_context("spawn")  # a GPU does not come through a fork


class Apart:
    """An executor in another process."""

    def __init__(self, make: Callable[[], Executor], seconds: float = SECONDS) -> None:
        """make: pickled; called there. Errors: UsageError where that is refused."""
        self._make, self._seconds = make, seconds
        self.name, self.arch, self.chip = self._start()

    def _start(self) -> tuple[str, Arch, str | None]:
        self._connection, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(theirs, self._make), daemon=True)
        self._process.start()
        theirs.close()
        try:
            answer = self._connection.recv() if self._connection.poll(START_SECONDS) else "its process does not begin"
        except EOFError:
            answer = "its process died as it began"
        if isinstance(answer, str):
            self.close()
            raise UsageError(answer)
        return answer

    def try_case(self, twin: Twin, config: Config) -> tuple[Record, Spread]:
        if not self._process.is_alive():
            try:
                self._start()
            except UsageError as error:
                reason = f"after the case before it, {error}"
                return record_of(twin, config, self, "skipped", reason=reason), {}
        try:
            self._connection.send((twin.name, dict(config)))
            if self._connection.poll(self._seconds):
                record, spread, is_usable = self._connection.recv()
                if not is_usable:
                    self.close()
                return record, spread
            reason = f"it did not end within {self._seconds:g} seconds"
        except (EOFError, OSError):
            reason = "the process that ran it died"
        self.close()
        return record_of(twin, config, self, "fail", reason=reason), {}

    def close(self) -> None:
        self._process.kill()
        self._process.join(timeout=60)
        self._connection.close()


def _serve(connection: Connection, make: Callable[[], Executor]) -> None:
    """What the other process does, until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    try:
        executor = make()
    except (Skip, ValueError) as error:
        connection.send(f"device: {error}")
        return
    connection.send((executor.name, executor.arch, executor.chip))
    while True:
        try:
            name, config = connection.recv()
        except EOFError:
            return
        record, spread = tried(executor, cases.twin_named(name), config)
        connection.send((record, spread, record.status != "fail" or not _is_lost()))


def gpu(seconds: float = SECONDS) -> Apart:
    """Errors: UsageError where there is none to run on."""
    if find_spec("torch") is None:
        raise UsageError("device needs torch; pip install 'diptych[gpu]' brings it")
    import torch

    if not torch.cuda.is_available():  # known sooner here than in another process
        raise UsageError("device: there is no GPU here")
    from parity.executors.device import DeviceExecutor

    return Apart(DeviceExecutor, seconds)


def try_on_device(device: Apart, of: Sequence[tuple[Twin, Config]], histograms: Histograms) -> Iterator[Record]:
    """A record of each case; how the errors are spread is added to `histograms`."""
    for twin, config in of:
        yield gathered(*device.try_case(twin, config), histograms)


def _is_lost() -> bool:
    """Has an access to memory that is nobody's ended all work of this process on the GPU?"""
    import torch

    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False
