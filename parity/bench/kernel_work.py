"""What `diptych bench kernels` runs: each operation at a model's shapes, ours beside its peers.

A peer does the same work with another library; the fastest is the one to beat. Buffers are made on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from engine.names import load_function
from reference.model.config import ModelConfig

Call = Callable[[], Any]
BLOCK_SIZE = 128
TILE = 16  # rows to which an expert's rows are padded at decode
EPS = 1e-6
MOST_DECODES = 512  # tokens up to which a step is taken for one of decode


@dataclass(frozen=True)
class Shape:
    """A model's sizes on one of `ranks` tensor-parallel ranks."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # of one expert, where there are experts
    vocab: int
    experts: int  # 0: dense
    top_k: int

    @staticmethod
    def of(name: str, config: ModelConfig, ranks: int = 1) -> Shape:
        sparse = config.num_experts > 0
        intermediate = config.moe_intermediate_size if sparse else config.intermediate_size
        return Shape(
            name if ranks == 1 else f"{name} TP{ranks}",
            config.hidden_size,
            config.num_heads // ranks,
            max(1, config.num_kv_heads // ranks),
            config.head_dim,
            intermediate // ranks,
            config.vocab_size,
            config.num_experts if sparse else 0,
            config.num_experts_per_token if sparse else 0,
        )


@dataclass(frozen=True)
class Work:
    """One operation at one size: what to run on one set of buffers, by whom, and the bytes that must move."""

    operation: str
    num_bytes: int
    make: Callable[[], dict[str, Call]]  # new buffers; calls by "ours" and the peers' names


def ours(name: str) -> Callable[..., Any]:
    return load_function(f"optimized.kernels.{name}:{name}")


def works(shape: Shape, tokens: int) -> Iterator[Work]:
    """All operations of a model at a number of tokens, bf16."""
    for make in (_embedding, _rms_norm, _add_rms_norm, _qk_norm, _fused, _gated_activation):
        yield make(shape, tokens)
    if shape.experts:
        yield from (_router(shape, tokens), _moe(shape, tokens))


@cache
def _torch() -> Any:
    import torch

    return torch


def _normal(*shape: int) -> Any:
    torch = _torch()
    return torch.randn(shape, dtype=torch.bfloat16, device="cuda")


def _with_quack(calls: dict[str, Call], name: str, call: Callable[[Any], Call]) -> dict[str, Call]:
    if find_spec("quack") is not None:
        import quack

        if hasattr(quack, name):
            calls["quack"] = call(getattr(quack, name))
    return calls


def _embedding(shape: Shape, tokens: int) -> Work:
    def make() -> dict[str, Call]:
        torch = _torch()
        table, out = _table(shape.vocab, shape.hidden), _normal(tokens, shape.hidden)
        ids = torch.randint(0, shape.vocab, (tokens,), dtype=torch.int32, device="cuda")
        embed = ours("embedding")
        return {
            "ours": lambda: embed(ids, table, out=out),
            "torch": lambda: torch.index_select(table, 0, ids, out=out),
        }

    return Work("embedding", tokens * (4 + 4 * shape.hidden), make)


@cache
def _table(vocab: int, hidden: int) -> Any:
    return _normal(vocab, hidden)


def _rms_norm(shape: Shape, tokens: int) -> Work:
    def make() -> dict[str, Call]:
        x, weight, out = _normal(tokens, shape.hidden), _normal(shape.hidden), _normal(tokens, shape.hidden)
        norm, torch = ours("rms_norm"), _torch()
        calls: dict[str, Call] = {
            "ours": lambda: norm(x, weight, EPS, out=out),
            "torch": lambda: torch.nn.functional.rms_norm(x, (shape.hidden,), weight, EPS),
        }
        return _with_quack(calls, "rmsnorm", lambda peer: lambda: peer(x, weight, eps=EPS))

    return Work("rms_norm", 2 * shape.hidden * (2 * tokens + 1), make)


def _add_rms_norm(shape: Shape, tokens: int) -> Work:
    def make() -> dict[str, Call]:
        x, residual, weight = _normal(tokens, shape.hidden), _normal(tokens, shape.hidden), _normal(shape.hidden)
        out = _normal(tokens, shape.hidden), _normal(tokens, shape.hidden)
        norm, torch = ours("add_rms_norm"), _torch()

        def by_torch() -> Any:
            added = x + residual
            return torch.nn.functional.rms_norm(added, (shape.hidden,), weight, EPS), added

        calls: dict[str, Call] = {"ours": lambda: norm(x, residual, weight, EPS, out=out), "torch": by_torch}
        return _with_quack(
            calls, "rmsnorm", lambda peer: lambda: peer(x, weight, residual=residual, eps=EPS, prenorm=True)
        )

    return Work("add_rms_norm", 2 * shape.hidden * (4 * tokens + 1), make)


def _heads(shape: Shape, tokens: int) -> tuple[Any, Any, Any]:
    """q, k, v as parts of one projection."""
    num_heads = shape.heads + 2 * shape.kv_heads
    qkv = _normal(tokens, num_heads, shape.head_dim)
    return qkv[:, : shape.heads], qkv[:, shape.heads : shape.heads + shape.kv_heads], qkv[:, -shape.kv_heads :]


def _qk_norm(shape: Shape, tokens: int) -> Work:
    def make() -> dict[str, Call]:
        q, k, _ = _heads(shape, tokens)
        q_weight, k_weight = _normal(shape.head_dim), _normal(shape.head_dim)
        norm, torch = ours("qk_norm"), _torch()

        def by_torch() -> Any:
            rms_norm = torch.nn.functional.rms_norm
            return rms_norm(q, (shape.head_dim,), q_weight, EPS), rms_norm(k, (shape.head_dim,), k_weight, EPS)

        return {"ours": lambda: norm(q, k, q_weight, k_weight, EPS), "torch": by_torch}

    return Work("qk_norm", 4 * tokens * (shape.heads + shape.kv_heads) * shape.head_dim, make)


def _slots(tokens: int) -> Any:
    """Decode: each token goes on with a block of its own sequence. Prefill: tokens fill blocks."""
    torch = _torch()
    token = torch.arange(tokens, dtype=torch.int64, device="cuda")
    return token if tokens > MOST_DECODES else token * BLOCK_SIZE + BLOCK_SIZE // 2


def _fused(shape: Shape, tokens: int) -> Work:
    def make() -> dict[str, Call]:
        torch = _torch()
        q, k, v = _heads(shape, tokens)
        q_weight, k_weight = _normal(shape.head_dim), _normal(shape.head_dim)
        positions = torch.arange(tokens, dtype=torch.int32, device="cuda")
        cos, sin = (torch.randn(tokens, shape.head_dim // 2, device="cuda") for _ in range(2))
        slots = _slots(tokens)
        blocks = int(slots.max()) // BLOCK_SIZE + 1
        k_cache, v_cache = (_normal(blocks, shape.kv_heads, BLOCK_SIZE, shape.head_dim) for _ in range(2))
        fused, norm, turn, write = (ours(n) for n in ("qk_norm_rope_kv_write", "qk_norm", "rope", "kv_write"))

        def three_launches() -> None:
            norm(q, k, q_weight, k_weight, EPS)
            turn(q, positions, cos, sin)
            turn(k, positions, cos, sin)
            write(k, v, k_cache, v_cache, slots)

        return {
            "ours": lambda: fused(q, k, v, q_weight, k_weight, positions, cos, sin, k_cache, v_cache, slots, EPS),
            "unfused": three_launches,
        }

    size = 4 * (shape.heads + 2 * shape.kv_heads) * shape.head_dim + 4 * shape.head_dim + 12
    return Work("qk_norm_rope_kv_write", tokens * size, make)


def _gated_activation(shape: Shape, tokens: int) -> Work:
    def make() -> dict[str, Call]:
        gate_up, out = _normal(tokens, 2 * shape.intermediate), _normal(tokens, shape.intermediate)
        gate, up = gate_up[:, : shape.intermediate], gate_up[:, shape.intermediate :]
        act, torch = ours("gated_activation"), _torch()
        return {
            "ours": lambda: act(gate_up, kind="silu", out=out),
            "torch": lambda: torch.nn.functional.silu(gate) * up,
        }

    return Work("gated_activation", 6 * tokens * shape.intermediate, make)


def _router(shape: Shape, tokens: int) -> Work:
    def make() -> dict[str, Call]:
        torch = _torch()
        logits = _normal(tokens, shape.experts)
        out = (
            torch.empty(tokens, shape.top_k, dtype=torch.int32, device="cuda"),
            torch.empty(tokens, shape.top_k, device="cuda"),
        )
        route = ours("router_top_k")

        def by_torch() -> Any:
            weights, ids = torch.topk(torch.softmax(logits, dim=-1, dtype=torch.float32), shape.top_k)
            return ids, weights / weights.sum(dim=-1, keepdim=True)

        return {"ours": lambda: route(logits, shape.top_k, normalize=True, out=out), "torch": by_torch}

    return Work("router_top_k", tokens * (2 * shape.experts + 8 * shape.top_k), make)


def _moe(shape: Shape, tokens: int) -> Work:
    """Dispatch and combine, without the products between them."""
    pairs = tokens * shape.top_k

    def make() -> dict[str, Call]:
        torch = _torch()
        x, out = _normal(tokens, shape.hidden), _normal(tokens, shape.hidden)
        ids = torch.rand(tokens, shape.experts, device="cuda").topk(shape.top_k).indices.to(torch.int32)
        weights = torch.rand(tokens, shape.top_k, device="cuda")
        dispatch, combine = ours("moe_dispatch"), ours("moe_combine")

        def both() -> Any:
            _, _, row_of, rows = dispatch(x, ids, shape.experts, tile=TILE)
            return combine(rows, row_of, weights, out=out)

        def by_torch() -> Any:
            flat = ids.flatten()
            order = torch.argsort(flat, stable=True)
            counts = torch.zeros(shape.experts, dtype=torch.int64, device="cuda")
            counts.scatter_add_(0, flat.long(), torch.ones_like(flat, dtype=torch.int64))
            padded = (counts + TILE - 1) // TILE * TILE
            starts = padded.cumsum(0) - padded
            sorted_ids = flat[order].long()
            place = starts[sorted_ids] + torch.arange(pairs, device="cuda") - (counts.cumsum(0) - counts)[sorted_ids]
            capacity = (pairs + min(shape.experts, pairs) * (TILE - 1)) // TILE * TILE
            rows = torch.zeros(capacity, shape.hidden, dtype=x.dtype, device="cuda")
            rows[place] = x[order // shape.top_k]
            row_of = torch.empty(pairs, dtype=torch.int64, device="cuda")
            row_of[order] = place
            picked = rows[row_of].view(tokens, shape.top_k, shape.hidden)
            return (picked * weights[..., None]).sum(1).to(x.dtype)

        return {"ours": both, "torch": by_torch}

    # Each row is written and read once by each of the two; padding is not counted.
    return Work("moe_dispatch+combine", 2 * shape.hidden * (2 * tokens + 2 * pairs), make)
