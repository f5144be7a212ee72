"""What `diptych bench kernels` runs: each twin at a model's shapes, ours beside its peers.

A twin's case file says what a model calls it with, and which bytes must move; what peers do with the same tensors is in
`kernel_peers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from engine.names import load_function
from parity.bench.kernel_peers import PEERS, Operands, Peer, dispatch_and_combine_by_torch, installed
from parity.cases import names, twin_named
from parity.executors.placement import place, place_all
from parity.harness import seed_of
from parity.shape import Shape
from parity.twin import Config, Twin, as_tuple

Call = Callable[[], Any]


@dataclass(frozen=True)
class Work:
    """One operation at one size: what to run, by whom, and the bytes that must move."""

    operation: str
    num_bytes: int
    # So many sets of buffers on a device; of each, the calls by "ours" and the peers' names.
    make: Callable[[int, Any], list[dict[str, Call]]]


def works(shape: Shape, tokens: int) -> Iterator[Work]:
    """All operations of a model at a number of tokens, bf16."""
    for name in names():
        twin = twin_named(name)
        for operation, one in configs_of_model(twin, shape, tokens).items():
            if twin.bytes_moved is not None:
                peers = {**PEERS.get(name, {}), **installed(name)}
                yield Work(operation, twin.bytes_moved(one), partial(make_calls, twin, one, peers))
    dispatch, combine = (twin_named(name) for name in ("moe_dispatch", "moe_combine"))
    assert dispatch.of_model is not None and combine.of_model is not None
    config, after = dispatch.of_model(shape, tokens), combine.of_model(shape, tokens)
    if config is not None and after is not None:
        assert dispatch.bytes_moved is not None and combine.bytes_moved is not None
        num_bytes = dispatch.bytes_moved(config) + combine.bytes_moved(after)
        yield Work("moe_dispatch+combine", num_bytes, partial(_dispatch_and_combine, config))


def configs_of_model(twin: Twin, shape: Shape, tokens: int) -> dict[str, Config]:
    """What a model calls a twin with, by a name: the twin's, and that of a weight where there are several."""
    config = twin.of_model(shape, tokens) if twin.of_model is not None else None
    weights = twin.weights_of_model(shape, tokens) if twin.weights_of_model is not None else {}
    found: dict[str, Config] = {} if config is None else {twin.name: config}
    return found | {f"{twin.name} {weight}": one for weight, one in weights.items()}


def make_calls(twin: Twin, config: Config, peers: Mapping[str, Peer], count: int, where: Any) -> list[dict[str, Call]]:
    """Ours and the peers', on `count` sets of buffers of their own."""
    function = load_function(twin.optimized)
    calls: list[dict[str, Call]] = []
    for operands in _operands(twin, config, count, where):
        run = partial(function, *operands.arrays.values(), **operands.constants)
        results = zip(twin.outputs, as_tuple(run()), strict=True)  # in memory of the right shapes: it is kept
        out = tuple(result for output, result in results if output.in_place is None)
        if out:
            run = partial(run, out=out[0] if len(out) == 1 else out)
        whole = Operands(operands.arrays, operands.constants, out)
        calls.append({"ours": run, **{name: partial(peer, whole) for name, peer in peers.items()}})
    return calls


def _operands(twin: Twin, config: Config, count: int, where: Any) -> Iterator[Operands]:
    """NumPy makes the first. The others are copies, or share with it what is too large for copies."""
    random = np.random.default_rng(seed_of(config))
    call = twin.inputs(config, random)
    first = place_all(call.arrays, where)
    yield Operands(first, call.constants)
    for _ in range(count - 1):
        if twin.unshared:
            own = {name: place(make(config, random), where) for name, make in twin.unshared.items()}
            yield Operands({**first, **own}, call.constants)
        else:
            yield Operands(deepcopy(first), call.constants)  # slices of one tensor stay so


def _dispatch_and_combine(config: Config, count: int, where: Any) -> list[dict[str, Call]]:
    """Without the products between them."""
    import torch

    dispatch, combine = (load_function(twin_named(name).optimized) for name in ("moe_dispatch", "moe_combine"))
    random = np.random.default_rng(seed_of(config))

    def both(operands: Operands) -> Any:
        x, expert_ids, weights = operands.arrays.values()
        _, _, row_of, rows = dispatch(x, expert_ids, **operands.constants)
        return combine(rows, row_of, weights, out=operands.out[0])

    calls: list[dict[str, Call]] = []
    for operands in _operands(twin_named("moe_dispatch"), config, count, where):
        x, expert_ids = operands.arrays.values()
        weights = place(random.uniform(0.1, 1.0, expert_ids.shape).astype(np.float32), where)
        arrays = {**operands.arrays, "weights": weights}
        whole = Operands(arrays, operands.constants, (torch.empty_like(x),))
        by_torch = partial(dispatch_and_combine_by_torch, whole)
        calls.append({"ours": partial(both, whole), "torch": by_torch})
    return calls
