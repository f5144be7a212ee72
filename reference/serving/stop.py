"""Where a sample ends, and how much of its text may be shown before. Pure functions of all its tokens.

A sample ends at the first token that gives it any of these; of several at one token, the one named first counts:

1. a stop string, complete in the text. Of several, the one that is complete at the earliest character; of those that
   end together, the longest. The text is cut before it, or after it with `include_stop_str_in_output`;
2. an end-of-sequence id (unless `ignore_eos`) or a stop id. It stays in the token ids, and its own text is shown only
   with `include_stop_str_in_output` (and, being special, only without `skip_special_tokens`), as in vLLM;
3. the budget: `max_tokens`, or the end of the context.

`min_tokens` keeps ending ids from being sampled. A stop string ends a sample even before it (unlike in vLLM): no text
ever holds one.

Two kinds of text are held back while a sample runs, so that what was shown is never taken back:

- a last U+FFFD. It may stand for a character whose other bytes are still to come, or be a real one; the two decode
  alike, and the next token (or the end) tells. Nothing before it can change, so a text of U+FFFD alone does not stall:
  it is one character late. Stop strings are looked for in the text that cannot change;
- the longest ending that could grow into a stop string, unless stop strings are to be shown.

The output is decoded without the prompt: a character that the prompt left unfinished stays unfinished.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from reference.serving.request import FinishReason, SamplingParams
from reference.serving.served_model import Decode

REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Ending:
    """How a sample ended. text is all of its text."""

    text: str
    finish_reason: FinishReason
    stop_reason: int | str | None = None


def ending(
    output_token_ids: Sequence[int],  # at least one; none of them but the last ends the sample
    params: SamplingParams,
    *,
    decode: Decode,
    eos_token_ids: Collection[int],
    budget: int,  # tokens of output, from max_tokens and the context
) -> Ending | None:
    """How the sample ends with its last token; None if it goes on."""
    last = output_token_ids[-1]
    is_eos = last in eos_token_ids and not params.ignore_eos
    is_ending_id = is_eos or last in params.stop_token_ids
    is_spent = len(output_token_ids) >= budget

    hides_last = is_ending_id and not params.include_stop_str_in_output
    text = decode(output_token_ids[:-1] if hides_last else output_token_ids, params.skip_special_tokens)
    found = first_stop_string(text if is_ending_id or is_spent else unchanging(text), params.stop)
    if found is not None:
        begin, stop = found
        end = begin + len(stop) if params.include_stop_str_in_output else begin
        return Ending(text[:end], FinishReason.STOP, stop)
    if is_ending_id:
        return Ending(text, FinishReason.STOP, None if is_eos else last)
    if is_spent:
        return Ending(text, FinishReason.LENGTH)
    return None


def text_to_show(output_token_ids: Sequence[int], params: SamplingParams, decode: Decode) -> str:
    """What may be shown of a sample that goes on."""
    text = unchanging(decode(output_token_ids, params.skip_special_tokens))
    return text if params.include_stop_str_in_output else text[: len(text) - _possible_beginning(text, params.stop)]


def first_stop_string(text: str, stop: Sequence[str]) -> tuple[int, str] | None:
    """The stop string that is complete first, and where it begins."""
    found = [(begin + len(string), begin, string) for string in stop if (begin := text.find(string)) >= 0]
    if not found:
        return None
    _, begin, string = min(found)
    return begin, string


def unchanging(text: str) -> str:
    """The text that no further token can change."""
    return text.removesuffix(REPLACEMENT)


def _possible_beginning(text: str, stop: Sequence[str]) -> int:
    """The length of the longest ending of the text that begins a stop string."""
    return max(
        (n for string in stop for n in range(1, min(len(string), len(text) + 1)) if text.endswith(string[:n])),
        default=0,
    )
