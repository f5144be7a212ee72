"""How far a run is, for whoever watches: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from engine.batch.answers import AnsweredLine
from engine.batch.resume import Kept

REPORT_SECONDS = 30.0


class Report:
    """Counts lines as they are written. Used as a context, in which the bar is shown."""

    def __init__(
        self,
        console: Console,
        kept: Kept,
        total_bytes: int | None,
        *,
        every: float = REPORT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """total_bytes: of the input; None where that is not known. every: seconds between two lines, if there is no
        bar."""
        self.num_lines = kept.num_lines
        self.num_failed = kept.num_failed
        self.num_tokens = 0  # sampled by this run
        self._console, self._every, self._clock = console, every, clock
        self._begun = self._reported = clock()  # when the model is there, from `__enter__` on
        columns = BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=total_bytes)

    def __enter__(self) -> Report:
        self._begun = self._reported = self._clock()
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def written(self, line: AnsweredLine) -> None:
        """One more line is in the output."""
        self.num_lines += 1
        self.num_failed += line.failed
        self.num_tokens += line.num_tokens
        self._bar.update(self._task, completed=line.input_end, description=self.summary())
        if self._bar.disable and self._clock() - self._reported >= self._every:
            self._reported = self._clock()
            self._console.print(self.summary(), markup=False)

    def summary(self) -> str:
        """Lines in the output, those of them that tell an error, and this run's tokens a second."""
        counts = f"{self.num_lines:,} lines, {self.num_failed:,} failed"
        seconds = self._clock() - self._begun
        return f"{counts}, {self.num_tokens / seconds:,.0f} tokens/s" if self.num_tokens and seconds else counts
