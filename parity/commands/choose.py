"""What the names on a command line stand for. Errors of every function: UsageError."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any

from engine.usage import UsageError
from parity import cases
from parity.twin import Call, Config, Twin

COMPILER = ("cutlass", "tvm_ffi")  # modules of the packages that kernels are compiled with


def need_compiler() -> None:
    """Say early, and in words, what is not installed."""
    missing = [module for module in COMPILER if find_spec(module) is None]
    if missing:
        raise UsageError(
            f"{' and '.join(missing)} cannot be imported; pip install 'diptych[compile]' brings the compiler"
        )


def one_of(kind: str, name: str, known: Iterable[str]) -> str:
    """The name, if it is one of those that are known."""
    known = list(known)
    if name in known:
        return name
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    raise UsageError(f"unknown {kind} {name!r}; {hint}")


def listed(kind: str, text: str, known: Iterable[str]) -> list[str]:
    """Names with commas between them, each once."""
    known = list(known)
    return list(dict.fromkeys(one_of(kind, name.strip(), known) for name in text.split(",")))


def twins(names: Sequence[str]) -> list[Twin]:
    """Those named, each once; all, if none is."""
    known = cases.names()
    return [cases.twin_named(one_of("twin", name, known)) for name in dict.fromkeys(names or known)]


def configuration(twin: Twin, text: str) -> Config:
    """A configuration as JSON, of which inputs can be made. What every corner says and it does not is as in the first
    one that is not empty."""
    corners = list(twin.corners())
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"a configuration is a JSON object; {text!r} is none: {error}") from None
    if not isinstance(given, dict):
        raise UsageError(f"a configuration is a JSON object; {text!r} is none")
    for name in given:
        one_of(f"part of a configuration of {twin.name}", name, dict.fromkeys(key for one in corners for key in one))
    usual = first_not_empty(twin)
    config = {key: usual[key] for key in usual if all(key in one for one in corners)} | given
    with refused(twin, config):
        inputs_of(twin, config)
    return config


@contextmanager
def refused(twin: Twin, config: Config) -> Iterator[None]:
    """What goes wrong inside is the configuration's fault: numbers of a person's choice reach NumPy as they are."""
    try:
        yield
    except Exception as error:
        told = f"{twin.name} cannot be called with {json.dumps(dict(config))}: {type(error).__name__}: {error}"
        raise UsageError(told) from error


def inputs_of(twin: Twin, config: Config) -> Call:
    from parity.harness import call_of

    return call_of(twin, config)


def first_not_empty(twin: Twin) -> dict[str, Any]:
    """The first corner in which no array is empty."""
    for config in twin.corners():
        if all(array.size for array in inputs_of(twin, config).arrays.values()):
            return dict(config)
    raise UsageError(f"every corner of {twin.name} has an empty array")
