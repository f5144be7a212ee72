"""What an earlier run left in the output: the answers that are kept, and where a torn line begins.

Every answer is held against its line of the input, so nothing is resumed that would not have come out the same. A crash
leaves whole lines and then a part of one; a power loss may leave zeros too. That is cut off and made again. Anything
else that is no answer was not written by this command, and is left alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from engine.batch.answers import ID_PREFIX, LineId, is_failed
from engine.batch.files import AnswerFile
from engine.batch.lines import Line, LineReader
from engine.usage import UsageError

_OPENING = f'{{"id":"{ID_PREFIX}'.encode()  # of every line that this command writes
_START_OVER = "name another --output, or start over with --overwrite"


@dataclass(frozen=True)
class Kept:
    """The answers that stay."""

    num_lines: int = 0
    num_failed: int = 0
    size: int = 0  # bytes


def kept_answers(out: AnswerFile, inputs: LineReader, run: str, depends_on: str) -> Kept:
    """Read a regular file of answers, and the input up to the last line that is answered in it.

    run: the digest of the options at hand. depends_on: which these are, for the message.
    Errors: UsageError for an output that belongs to other options, to another input, or to something else altogether.
    """
    kept = Kept()
    os.lseek(out.descriptor, 0, os.SEEK_SET)
    for line in LineReader(out.descriptor):
        if _is_torn(line, is_first=not kept.num_lines):
            break
        record = _record(line)
        found = LineId.parse(record.get("id")) if record else None
        if record is None or found is None:
            where = f"{out.name}: line {line.index}, counted from 0,"
            raise UsageError(f"{where} is no answer that this command wrote; {_START_OVER}")
        if found.run != run:
            raise UsageError(f"{out.name} was begun with other options: one of {depends_on}; {_START_OVER}")
        asked = next(inputs, None)
        if asked is None or LineId.of(asked, run) != found:
            message = f"the input has changed: {out.name} answers another line {found.index}, counted from 0"
            raise UsageError(f"{message}; {_START_OVER}")
        kept = Kept(kept.num_lines + 1, kept.num_failed + is_failed(record), line.end)
    return kept


def _is_torn(line: Line, *, is_first: bool) -> bool:
    """Was its writing interrupted? What it holds before any zeros must be what this command writes."""
    written, zero, rest = line.data.partition(b"\0")
    if line.terminated and not zero:
        return False
    if is_first and not written:
        return not rest.strip(b"\0")
    return written[: len(_OPENING)] == _OPENING[: len(written)]


def _record(line: Line) -> dict[str, Any] | None:
    """None for what is no JSON object."""
    try:
        record = from_json(line.data)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
