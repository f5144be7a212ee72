"""`diptych bench NAME`: a table of measurements, each imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence

from engine.names import load_function
from engine.usage import UsageError

BENCHES = {
    "serve": ("parity.bench.serve:main", "tokens per second of a model, beside transformers"),
    "kernels": ("parity.bench.kernels:main", "microseconds of each twin on a GPU, beside its peers"),
    "launch": ("parity.bench.launch_sweep:main", "a row kernel under every launch, and the policy's choice"),
    "simulator": ("parity.bench.simulator:main", "thread-instructions a second of the GPU simulator, on one core"),
    "engine": ("parity.bench.engine_overhead:main", "milliseconds of a step that are not the model's"),
}


def main(arguments: Sequence[str]) -> int:
    """Run a measurement. Errors: UsageError."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print("usage: diptych bench NAME [OPTION ...]\n")
        for known, (_, summary) in BENCHES.items():
            print(f"  {known:9}  {summary}")
        return 0 if arguments else 2
    if name not in BENCHES:
        raise UsageError(f"unknown measurement {name!r}; known are {', '.join(BENCHES)}")
    code: int = load_function(BENCHES[name][0])(arguments[1:])
    return code
