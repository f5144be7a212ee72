"""`diptych generate --input`: a file of requests answered into a file of answers. `engine/batch` says how they look."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from rich.console import Console

from engine.api.body import MAX_BODY_BYTES
from engine.batch.answers import AnsweredLine, LineAnswerer, run_digest
from engine.batch.files import STANDARD, AnswerFile, is_same_file, open_input, open_output, regular_size
from engine.batch.in_order import Limits, in_order
from engine.batch.lines import LineReader
from engine.batch.report import Report
from engine.batch.resume import Kept, kept_answers
from engine.commands.load import load_model
from engine.commands.terminal import running
from engine.loop import EngineError, EngineStopped
from engine.panels import PANELS
from engine.usage import UsageError
from reference.serving.request import RequestError, SamplingParams

# Options that change answers. A run may be resumed with other ones of speed and memory.
DEPENDS_ON = (
    "model",
    "panel",
    "load_format",
    "max_model_len",
    "served_model_name",
    "max_tokens",
    "temperature",
    "seed",
)
WINDOW = 8  # times the concurrency: lines that are held at once, most of them waiting for an earlier one
WAITING_BYTES = 2**28  # of answers that wait so


def answer_file(options: argparse.Namespace) -> int:
    """Answer the lines that have no answer yet. The exit code: 1 if the output tells an error of any line, else 0.

    Errors: UsageError; EngineError where the engine fails for good.
    """
    console = Console(stderr=True, highlight=False)
    limits = _limits(options)
    sampling = _sampling(options)
    run = run_digest({name: getattr(options, name) for name in DEPENDS_ON})
    with open_input(options.input) as source, open_output(options.output or STANDARD) as out:
        if is_same_file(source, out.descriptor):
            raise UsageError(f"--input and --output are one file, {out.name}")
        if options.overwrite and out.is_stream:
            raise UsageError(f"--overwrite needs an --output that is a file; {out.name} is none")
        inputs = LineReader(source, MAX_BODY_BYTES)
        kept = Kept()
        if not (options.overwrite or out.is_stream):
            kept = kept_answers(out, inputs, run, ", ".join(map(_flag, DEPENDS_ON)))
        report = Report(console, kept, regular_size(source))
        if kept.num_lines:
            console.print(f"{out.name} holds {kept.num_lines:,} answers, which are kept", markup=False, soft_wrap=True)
        served = None
        if not (kept.num_lines and inputs.ended()):  # a run that is found complete needs no model
            served = load_model(options, console).served(options.served_model_name)
        with _telling_how_to_go_on(console, out):
            try:
                out.cut(kept.size)
                if served is not None:
                    answerer = LineAnswerer(served, run, sampling, options.seed)
                    writer = _Writer(out, report, patience=limits.held)
                    with running(served), report:
                        asyncio.run(in_order(inputs, answerer.answer, writer.write, limits))
            finally:
                out.sync()
    console.print(report.summary(), markup=False)
    return 1 if report.num_failed else 0


def _limits(options: argparse.Namespace) -> Limits:
    concurrency = options.concurrency
    if concurrency is None:
        most = options.max_num_seqs or max(panel.settings.max_num_seqs for panel in PANELS.values())
        concurrency = 2 * most  # as many again wait, so that a place is filled in the next step
    if concurrency < 1:
        raise UsageError(f"--concurrency is {concurrency}; it must be at least 1")
    return Limits(running=concurrency, held=WINDOW * concurrency, waiting_size=WAITING_BYTES)


def _sampling(options: argparse.Namespace) -> dict[str, Any]:
    """What the command line says of sampling. Checked here: else every line would have that error."""
    given = {name: getattr(options, name) for name in ("max_tokens", "temperature")}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        SamplingParams(**given)
    except RequestError as error:
        raise UsageError(str(error)) from None
    return given


def _flag(name: str) -> str:
    return "MODEL" if name == "model" else f"--{name.replace('_', '-')}"


class _Writer:
    """Writes answers, and gives up on an engine that fails under one line after the other: else all of them would have
    its error for an answer."""

    def __init__(self, out: AnswerFile, report: Report, *, patience: int) -> None:
        """patience: failures in a row that are taken for the fault of one line, under which others ran."""
        self._out, self._report, self._patience = out, report, patience
        self._num_failing = 0
        self._good_size = 0  # bytes of the output before the first of them

    def write(self, line: AnsweredLine) -> None:
        """Errors: EngineError, with the failures cut off a regular file; OSError."""
        if line.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            self._num_failing = 0
        elif not self._num_failing:
            self._good_size = self._out.size
        self._num_failing += line.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        if self._num_failing > self._patience:
            self._out.cut(self._good_size)
            raise EngineError(f"the engine failed under {self._num_failing} lines in a row")
        self._out.write(line.data)
        self._report.written(line)


@contextmanager
def _telling_how_to_go_on(console: Console, out: AnswerFile) -> Iterator[None]:
    """Errors: those of the run, with a word on what is left of it."""
    hint = "a run that does not write to a file cannot go on"
    if not out.is_stream:
        hint = f"the answers so far are in {out.name}; the same command, without --overwrite, goes on after them"
    try:
        yield
    except BrokenPipeError:  # nobody reads the answers
        raise
    except OSError as error:
        raise UsageError(f"{error.strerror}; {hint}") from error
    except (KeyboardInterrupt, EngineError, EngineStopped):
        console.print(f"not finished: {hint}", markup=False, soft_wrap=True)
        raise
