"""Which models the optimized panel computes, and where: told without what it takes to do so."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import CDLL
from importlib.util import find_spec

from optimized.compile.arch import arch_of_capability
from optimized.libraries import FLASH_ATTENTION, QUACK, missing
from reference.model.config import ModelConfig
from reference.serving.runner import Refused

DTYPES = ("bfloat16", "float16")  # that products and attention are made for
_PACKAGES = ("torch", "cutlass", "tvm_ffi")
# Limits of kernels, whose modules cannot be imported where their compiler is not; a test holds them to these.
HEAD_DIMS = (64, 128, 256)
MOST_EXPERTS, MOST_EXPERTS_PER_TOKEN = 512, 32
MOST_TOKEN_IDS = 389_120
_VECTOR = 8  # elements of an access of the copy engine, to which an expert's rows are aligned


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
    reason = next(_beyond(config), None)
    if reason is not None:
        raise UnsupportedModel(f"{reason}; the reference panel computes this model")


def _beyond(config: ModelConfig) -> Iterator[str]:
    """Which limits of kernels a model goes beyond, in words."""
    if config.head_dim not in HEAD_DIMS:
        known = ", ".join(map(str, HEAD_DIMS))
        yield f"the optimized panel has attention of heads of {known} channels, this model's have {config.head_dim}"
    if config.vocab_size > MOST_TOKEN_IDS:
        yield f"the optimized panel samples of up to {MOST_TOKEN_IDS} token ids, this model has {config.vocab_size}"
    if not any(config.sparse_layers):
        return
    experts, chosen = config.num_experts, config.num_experts_per_token
    if experts > MOST_EXPERTS or chosen > MOST_EXPERTS_PER_TOKEN:
        yield (
            f"the optimized panel routes to up to {MOST_EXPERTS_PER_TOKEN} of {MOST_EXPERTS} experts, this model to "
            f"{chosen} of {experts}"
        )
    for name, size in (("hidden_size", config.hidden_size), ("moe_intermediate_size", config.moe_intermediate_size)):
        if size % _VECTOR:
            yield f"the optimized panel takes experts whose sizes are multiples of {_VECTOR}; {name} is {size}"


def refusal(config: ModelConfig) -> str | None:
    """Why a model is not computed by this panel on this machine, in words; None: it is. torch is not imported where
    there is no driver."""
    try:
        CDLL("libcuda.so.1")
    except OSError:
        return "this machine has no NVIDIA driver"
    absent = [name for name in _PACKAGES if find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} cannot be imported: pip install 'diptych[gpu]' brings the optimized panel"
    libraries = missing(QUACK, FLASH_ATTENTION)
    if libraries is not None:
        return libraries
    import torch

    if not torch.cuda.is_available():
        return "torch finds no GPU that it can use"
    try:
        arch_of_capability(*torch.cuda.get_device_capability())
        check_supported(config)
    except ValueError as error:
        return str(error)
    return None
