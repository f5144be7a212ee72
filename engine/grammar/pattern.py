"""`pattern` and `patternProperties`: regular expressions as JSON Schema means them, in the grammar library's words.

JSON Schema means JavaScript's; the library reads those of Rust's `regex`. What it refuses, such as `(?=`, is refused.
What both take and read differently stands in character classes, which are written anew:

- `[` and `&&`, `--`, `~~` are characters there, and no nested class and no operations on classes;
- U+0000 is left out of them. A class of all 32 control characters without the quotation mark or the backslash, such as
  `[^"]`, would allow those too, written with an escape: a fault of llguidance 1.9 (derivre's `quote_all_ctrl`).
"""

from __future__ import annotations

_OPERATORS = "&~-"


def rust_pattern(pattern: str) -> str:
    """The pattern in Rust's syntax. Errors: ValueError for a class that is empty or does not end."""
    written, position = "", 0
    while position < len(pattern):
        if pattern[position] == "[":
            end = _end_of_class(pattern, position + 1)
            written += f"[{_rust_class(pattern[position : end + 1])}--\\x00]"
        else:
            end = position + (pattern[position] == "\\")
            written += pattern[position : end + 1]
        position = end + 1
    return written


def _end_of_class(pattern: str, position: int) -> int:
    first = position + pattern.startswith("^", position)
    if pattern.startswith("]", first):
        raise ValueError(f"the pattern {pattern!r} has an empty character class")
    while position < len(pattern) and pattern[position] != "]":
        position += 2 if pattern[position] == "\\" else 1
    if position >= len(pattern):
        raise ValueError(f"the pattern {pattern!r} has a character class without its end")
    return position


def _rust_class(written: str) -> str:
    inside, position = "", 1
    while position < len(written) - 1:
        character = written[position]
        if character == "\\":
            inside += written[position : position + 2]
            position += 2
            continue
        repeats = character in _OPERATORS and written[position - 1] == character
        inside += f"\\{character}" if character == "[" or repeats else character
        position += 1
    return f"[{inside}]"
