"""Copies of boxes that were tried on an H200, and what they left in memory: `boxes.json`, which this module writes when
it is run on such a chip.

    PYTHONPATH=. python tests/simulators/gpu/instructions/box_cases.py OUT.json COUNT
"""

from __future__ import annotations

import json
import random
import sys
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.memory.tensor_map import ELEMENTS, TensorMap, encode
from tests.simulators.gpu.instructions.boxes import BOX_BYTES, loading, storing

ILLEGAL = "illegal"  # the chip faulted
_BYTES = dict(ELEMENTS)
_REDUCTIONS = {
    "u32": ("add", "min", "max", "inc", "dec", "and", "or", "xor"),
    "s32": ("add", "min", "max"),
    "u64": ("add", "min", "max", "and", "or", "xor"),
    "s64": ("min", "max"),
    "f16": ("add", "min", "max"),
    "bf16": ("add", "min", "max"),
    "f32": ("add",),
}


@dataclass(frozen=True)
class BoxCase:
    """One copy between a tensor and a box in shared memory, whose bytes are random by seed."""

    seed: int
    tensor_map: TensorMap  # its address is that of the memory
    corner: tuple[int, ...]
    kind: str  # "load", "store", or a reduction
    shift: int  # of the box, from an address that is a multiple of 1024

    def text(self) -> str:
        if self.kind == "load":
            return loading(self.corner, self.tensor_map.box_bytes, self.shift)
        return storing(self.corner, "" if self.kind == "store" else self.kind, self.shift)

    def memory(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The tensor's, and the box's."""
        random_bytes = np.random.default_rng(self.seed)
        one = self.tensor_map
        strides = one.all_strides
        size = max(stride * length for stride, length in zip(strides, one.shape, strict=True)) + 512
        return tuple(random_bytes.integers(0, 256, n, np.uint8) for n in (size, BOX_BYTES))  # type: ignore[return-value]


def digest(*arrays: NDArray[Any]) -> str:
    value = 0
    for array in arrays:
        value = zlib.crc32(array.tobytes(), value)
    return f"{value:08x}"


def box_case(seed: int) -> BoxCase:
    """Random, the same for the same seed."""
    choose = random.Random(seed)
    element, rank = choose.choice(list(_BYTES)), choose.randint(1, 5)
    item, swizzle = _BYTES[element], choose.choice((0, 32, 64, 128))
    row = choose.choice([n for n in (16, 32, 48, 64, 96, 128) if n <= (swizzle or 128)])
    box = [row // item] + [choose.randint(1, 4) for _ in range(rank - 1)]
    while item * np.prod(box) * max(1, swizzle // row) > BOX_BYTES // 2:
        longest = choose.randrange(1, rank)
        box[longest] = max(1, box[longest] // 2)
    steps = [choose.choice((1, 1, 2, 3)) for _ in range(rank)]
    shape = [choose.randint(1, 70)] + [choose.randint(1, 6) for _ in range(rank - 1)]
    strides, stride = [], -(-shape[0] * item // 16) * 16
    for length in shape[1:]:
        strides.append(stride)
        stride = stride * length + choose.choice((0, 16))
    kind = choose.choice(("load", "load", "store", *_REDUCTIONS.get(element, ())[:1], "reduce"))
    kind = choose.choice(_REDUCTIONS.get(element, ("store",))) if kind == "reduce" else kind
    granule = max(1, 16 // item) if choose.random() < 0.9 else 1
    corner = [granule * choose.randint(-2, 3)] + [choose.choice((0, 0, choose.randint(-3, 4))) for _ in range(rank - 1)]
    if kind != "load" and choose.random() < 0.9:
        corner = [abs(place) for place in corner]
    tensor_map = TensorMap(
        0,
        element,
        tuple(shape),
        tuple(strides),
        tuple(box),
        tuple(steps),
        swizzle,
        fills_nan=element[0] in "fb" and choose.random() < 0.4,
        rounds_to_tf32=element.startswith("f32") and choose.random() < 0.4,
    )
    return BoxCase(seed, tensor_map, tuple(corner), kind, choose.choice((0, 0, 128, 640, 896)))


def _on_chip(driver: Any, case: BoxCase) -> str:
    module = driver.load(case.text())
    tensor, box = case.memory()
    addresses = [driver.upload(array) for array in (tensor, box)]
    tensor_map = encode(replace(case.tensor_map, address=addresses[0].value))
    addresses.append(driver.upload(np.frombuffer(tensor_map, np.uint8)))
    driver.launch(module, "k", 1, 32, addresses)
    return digest(driver.download(addresses[0], tensor), driver.download(addresses[1], box))


def _record(first: int, end: int) -> dict[int, str]:
    """As far as the first fault, after which a process cannot use the chip any more."""
    from tests.simulators.gpu.vectors.driver import Driver, DriverError

    driver, found = Driver(), {}
    for seed in range(first, end):
        try:
            found[seed] = _on_chip(driver, box_case(seed))
        except DriverError as error:
            if "ILLEGAL_INSTRUCTION" not in str(error):
                raise
            found[seed] = ILLEGAL
            break
    return found


def main() -> None:
    import multiprocessing

    count = int(sys.argv[2])
    found: dict[int, str] = {}
    while len(found) < count:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found |= pool.apply(_record, (len(found), count))
    with open(sys.argv[1], "w") as file:
        json.dump([found[seed] for seed in range(count)], file, indent=0)


if __name__ == "__main__":
    main()
