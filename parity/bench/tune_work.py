"""What `diptych tune` measures: the operations of a model that libraries compute, by each choice that there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from optimized.compile.arch import Arch
from optimized.compile.kernel import Kernel
from optimized.device import CompileOnly, Outline, Tensor
from optimized.kernels.grouped_linear_many_rows import grouped_linear_many_rows
from optimized.kernels.linear_many_rows import linear_many_rows
from optimized.kernels.linear_many_rows_gemm import TILINGS, fits_tiling, generation_of
from optimized.kernels.prefill_attention import CHOICES as ATTENTION_CHOICES
from optimized.kernels.prefill_attention import prefill_attention
from optimized.model.experts import EXPERT_TILE
from optimized.model.runner import BLOCK_SIZE
from optimized.tuned import CUBLAS, QUACK, TORCH
from reference.kernels.moe_dispatch import dispatch_rows
from reference.model.config import ModelConfig

Make = Callable[..., Tensor]  # a tensor of a shape, a dtype, and what it holds


@dataclass(frozen=True)
class Subject:
    """One operation of a model at one number of rows."""

    what: str  # for people
    operation: str
    sizes: tuple[int, ...]
    tokens: int
    rows: int  # that the operation is called with
    dtype: str
    flops: float
    num_bytes: int  # of what it reads and writes

    def choices(self, arch: Arch) -> Iterator[str]:
        """All that can do it, on any chip of the architecture."""
        if self.operation == "prefill_attention":
            yield from ATTENTION_CHOICES if self.sizes[0] > self.sizes[1] else ATTENTION_CHOICES[:1]
            return
        is_gated = "gated" in self.operation
        if not is_gated:
            yield TORCH if "grouped" in self.operation else CUBLAS
        generation = generation_of(arch)
        for tiling in TILINGS[generation]:
            if fits_tiling(tiling, generation, is_gated=is_gated, gathers=False):
                yield f"{QUACK} {tiling}"

    def calls(self, choices: Sequence[str], make: Make) -> dict[str, Callable[[], Tensor]]:
        """By each choice, on the same tensors. make: a tensor, by its shape, dtype and content."""
        arguments, named = _OPERANDS[self.operation](self, make)
        function = _FUNCTIONS[self.operation]
        own = {choice: {"out": None} if choice == TORCH else {} for choice in choices}  # torch takes memory itself
        return {choice: partial(function, *arguments, **named | own[choice], choice=choice) for choice in choices}

    def kernels(self, arch: Arch, num_sms: int, choices: Sequence[str]) -> Iterator[Kernel]:
        """What has to be compiled for them."""
        found: list[Kernel] = []
        device = CompileOnly(arch, lambda kernel, _: found.append(kernel))
        device.num_sms = num_sms
        ours = [choice for choice in choices if choice not in (CUBLAS, TORCH)]
        for call in self.calls(ours, lambda shape, dtype, holds: Outline(shape, dtype, device)).values():
            call()
        yield from dict.fromkeys(found)


def subjects_of(config: ModelConfig, tokens: int) -> Iterator[Subject]:
    """At so many tokens of a prompt, on one rank."""
    hidden, dtype = config.hidden_size, config.dtype.name
    size = config.dtype.dtype.itemsize

    def product(what: str, operation: str, features: int, channels: int, rows: int, experts: int = 0) -> Subject:
        sizes = (experts, features, channels) if experts else (features, channels)
        used = tokens * config.num_experts_per_token if experts else rows
        outputs = features // 2 if "gated" in operation else 2 * features if "residual" in operation else features
        num_bytes = size * (rows * (channels + outputs) + max(experts, 1) * features * channels)
        return Subject(what, operation, sizes, tokens, rows, dtype, 2.0 * used * features * channels, num_bytes)

    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    yield product("qkv", "linear", (heads + 2 * kv_heads) * head_dim, hidden, tokens)
    yield product("o", "linear_residual", hidden, heads * head_dim, tokens)
    if not all(config.sparse_layers):
        yield product("gate and up", "gated_linear", 2 * config.intermediate_size, hidden, tokens)
        yield product("gate and up, apart", "linear", 2 * config.intermediate_size, hidden, tokens)
        yield product("down", "linear_residual", hidden, config.intermediate_size, tokens)
    if any(config.sparse_layers):
        experts, inner = config.num_experts, config.moe_intermediate_size
        rows = dispatch_rows(tokens, config.num_experts_per_token, experts, tile=EXPERT_TILE)
        yield product("router", "linear", experts, hidden, tokens)
        yield product("experts: gate and up", "grouped_gated_linear", 2 * inner, hidden, rows, experts)
        yield product("experts: gate and up, apart", "grouped_linear", 2 * inner, hidden, rows, experts)
        yield product("experts: down", "grouped_linear", hidden, inner, rows, experts)
    yield Subject(
        "attention",
        "prefill_attention",
        (heads, kv_heads, head_dim, BLOCK_SIZE),
        tokens,
        tokens,
        dtype,
        2.0 * tokens * tokens * heads * head_dim,  # of two products, half of which is masked
        size * 2 * tokens * (heads + kv_heads) * head_dim,
    )


def _dense(of: Subject, make: Make) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    features, channels = of.sizes
    x, weight = make((of.rows, channels), of.dtype, "x"), make((features, channels), of.dtype, "weight")
    named: dict[str, Any] = {}
    outputs = features
    if of.operation == "gated_linear":
        named, outputs = {"activation": "silu"}, features // 2
    elif of.operation == "linear_residual":
        named = {"residual": make((of.rows, features), of.dtype, "x")}
    return (x, weight), {**named, "out": make((of.rows, outputs), of.dtype, "out")}


def _grouped(of: Subject, make: Make) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    experts, features, channels = of.sizes
    gated = {"activation": "silu"} if of.operation == "grouped_gated_linear" else {}
    x, weight = make((of.rows, channels), of.dtype, "x"), make((experts, features, channels), of.dtype, "weight")
    out = make((of.rows, features // 2 if gated else features), of.dtype, "out")
    return (x, weight, make((experts + 1,), "int32", "offsets")), {**gated, "out": out}


def _attention(of: Subject, make: Make) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    heads, kv_heads, head_dim, block_size = of.sizes
    blocks = -(-of.rows // block_size)
    q, out = (make((of.rows, heads, head_dim), of.dtype, holds) for holds in ("x", "out"))
    caches = [make((blocks, kv_heads, block_size, head_dim), of.dtype, "x") for _ in range(2)]
    table = make((1, blocks), "int32", "blocks")
    ends = make((2,), "int32", "ends"), make((1,), "int32", "length")
    return (q, *caches, table, *ends), {"clear": False, "out": out}


_FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    "linear": linear_many_rows,
    "linear_residual": linear_many_rows,
    "gated_linear": linear_many_rows,
    "grouped_linear": grouped_linear_many_rows,
    "grouped_gated_linear": grouped_linear_many_rows,
    "prefill_attention": prefill_attention,
}
_OPERANDS = {
    "linear": _dense,
    "linear_residual": _dense,
    "gated_linear": _dense,
    "grouped_linear": _grouped,
    "grouped_gated_linear": _grouped,
    "prefill_attention": _attention,
}


def maker(of: Subject, per_token: int) -> Make:
    """Of tensors on the GPU at hand: normal numbers, and each token sent to `per_token` experts at random."""
    import torch

    def make(shape: tuple[int, ...], dtype: str, holds: str) -> Tensor:
        options: dict[str, Any] = {"dtype": getattr(torch, dtype), "device": "cuda"}
        if holds == "out":
            return torch.empty(shape, **options)
        if holds == "x":
            return torch.randn(shape, **options)
        if holds == "weight":
            return torch.randn(shape, **options) * (2 / shape[-1] ** 0.5)
        if holds == "offsets":
            experts = shape[0] - 1
            ids = torch.rand(of.tokens, experts, device="cuda").topk(per_token).indices
            counts = torch.bincount(ids.flatten(), minlength=experts)
            padded = (counts + EXPERT_TILE - 1) // EXPERT_TILE * EXPERT_TILE
            return torch.cat([padded.new_zeros(1), padded.cumsum(0)]).to(torch.int32)
        if holds == "blocks":
            return torch.randperm(shape[1], device="cuda").to(torch.int32)[None]
        return torch.tensor({"ends": [0, of.rows], "length": [of.rows]}[holds], **options)

    return make
