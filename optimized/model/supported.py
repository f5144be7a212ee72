"""Which models the optimized panel computes, and where: told without what it takes to do so."""

from __future__ import annotations

from ctypes import CDLL
from importlib.util import find_spec

from optimized.compile.arch import arch_of_capability
from reference.model.config import ModelConfig
from reference.serving.runner import Refused

DTYPES = ("bfloat16", "float16")  # that products and attention are made for
_PACKAGES = ("torch", "cutlass", "tvm_ffi")


class UnsupportedModel(Refused):
    """A model that this panel cannot compute; the message says what can."""


def check_supported(config: ModelConfig) -> None:
    """Errors: UnsupportedModel."""
    if config.fp8_blocks:
        raise UnsupportedModel(
            f"the optimized panel has no products of FP8 weights yet; it computes {' and '.join(DTYPES)} checkpoints, "
            "and the reference panel computes this one"
        )
    if config.dtype.name not in DTYPES:
        raise UnsupportedModel(
            f"the optimized panel computes {' and '.join(DTYPES)}, this model is {config.dtype.name}; "
            "the reference panel computes it"
        )


def refusal(config: ModelConfig) -> str | None:
    """Why a model is not computed by this panel on this machine, in words; None: it is. torch is not imported where
    there is no driver."""
    try:
        CDLL("libcuda.so.1")
    except OSError:
        return "this machine has no NVIDIA driver"
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} cannot be imported: pip install 'diptych[gpu]' brings the optimized panel"
    import torch

    if not torch.cuda.is_available():
        return "torch finds no GPU that it can use"
    try:
        arch_of_capability(*torch.cuda.get_device_capability())
        check_supported(config)
    except ValueError as error:
        return str(error)
    return None
