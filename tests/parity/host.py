"""Twins whose optimized panel runs in host memory, and the executor of a GPU without one, to try the harness itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st

from optimized.compile.arch import SM_90A
from optimized.device import CompileOnly
from parity.commands.tried import Spread, tried
from parity.executors.device import DeviceExecutor, PoisonedDevice
from parity.inputs import normal, spoiled, strided, weights
from parity.record import Record
from parity.twin import Call, Config, Output, Twin

CORNER = {"tokens": 9, "hidden": 256, "dtype": "bfloat16", "rows": "normal", "row_stride": 0}


class HostExecutor(DeviceExecutor):
    """Places, guards and compares as on a GPU, in this machine's memory. The fixture `host` makes one."""

    def __init__(self) -> None:
        self._torch = torch
        self._where = torch.device("cpu")
        self.arch = SM_90A
        self.chip = "none"
        self._device = PoisonedDevice(self, CompileOnly(SM_90A, lambda *_: None))

    def wait(self) -> None:
        """In host memory there is nothing to wait for."""


class Here:
    """Stands for the process that cases are tried in on a GPU: tries them in this one."""

    def __init__(self, executor: HostExecutor) -> None:
        self.name, self.arch, self.chip = executor.name, executor.arch, executor.chip
        self._executor = executor

    def try_case(self, twin: Twin, config: Config) -> tuple[Record, Spread]:
        return tried(self._executor, twin, config)

    def close(self) -> None:
        pass


def corners() -> Iterator[Config]:
    yield CORNER | {"tokens": 0}
    yield CORNER
    yield CORNER | {"dtype": "float32"}
    yield CORNER | {"rows": "nan"}
    yield CORNER | {"row_stride": 300}


space = st.fixed_dictionaries({name: st.just(value) for name, value in CORNER.items()} | {"tokens": st.integers(0, 30)})


def inputs(config: Config, random: np.random.Generator) -> Call:
    x = spoiled(random, normal(random, config["tokens"], config["hidden"], dtype=config["dtype"]), config["rows"])
    if config["row_stride"]:
        x = strided(x, config["row_stride"])
    return Call({"x": x, "weight": weights(random, config["hidden"], dtype=config["dtype"])}, {"eps": 1e-6})


def add_inputs(config: Config, random: np.random.Generator) -> Call:
    call = inputs(config, random)
    residual = normal(random, config["tokens"], config["hidden"], dtype=config["dtype"])
    arrays = {"x": call.arrays["x"], "residual": residual, "weight": call.arrays["weight"]}
    return Call(arrays, call.constants)


def router_inputs(config: Config, random: np.random.Generator) -> Call:
    """Logits of few different values, so that there are ties."""
    logits = random.integers(-2, 3, (config["tokens"], config["hidden"])).astype(np.float32)
    return Call({"logits": logits}, {"k": 4, "normalize": True})


RMS_NORM = Twin("rms_norm", (Output("out"),), corners, space, inputs, optimized="tests.parity.planted:rms_norm")
ADD_RMS_NORM = replace(
    RMS_NORM,
    name="add_rms_norm",
    outputs=(Output("normed"), Output("residual", exact=True, any_nan=True, in_place="residual")),
    inputs=add_inputs,
    reference="reference.kernels.rms_norm:add_rms_norm",
    optimized="tests.parity.planted:add_rms_norm",
)
ROUTER = replace(
    RMS_NORM,
    name="router_top_k",
    outputs=(Output("expert_ids", exact=True), Output("weights")),
    inputs=router_inputs,
    reference="reference.kernels.router_top_k:router_top_k",
    optimized="tests.parity.planted:router_top_k",
)


def planted(twin: Twin, fault: str) -> Twin:
    """A twin whose optimized panel has that fault."""
    return replace(twin, optimized=f"tests.parity.planted:{fault}")
