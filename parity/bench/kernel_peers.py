"""The peers of the twins: the same work with another library, on the same tensors. The fastest is the one to beat.

A peer takes `Operands` and gives its results in the order of the twin's outputs. Some of them write where they are told
to and others take memory of their own, as each library has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

from engine.names import load_function
from reference.kernels.moe_dispatch import dispatch_rows

Tensor = Any  # torch.Tensor


@dataclass(frozen=True)
class Operands:
    """One call of a twin, on a device."""

    arrays: Mapping[str, Tensor]  # in the order of the operation's positional parameters
    constants: Mapping[str, Any] = field(default_factory=dict)
    out: tuple[Tensor, ...] = ()  # of results that overwrite no input

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name] if name in self.arrays else self.constants[name]


Peer = Callable[[Operands], Any]


def _embedding(of: Operands) -> Tensor:
    import torch

    return torch.index_select(of["table"], 0, of["token_ids"], out=of.out[0])


def _rms_norm(of: Operands) -> Tensor:
    return _normed(of["x"], of["weight"], of["eps"])


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    import torch

    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)


def _add_rms_norm(of: Operands) -> tuple[Tensor, Tensor]:
    added = of["x"] + of["residual"]
    return _normed(added, of["weight"], of["eps"]), added


def _qk_norm(of: Operands) -> tuple[Tensor, Tensor]:
    return _normed(of["q"], of["q_weight"], of["eps"]), _normed(of["k"], of["k_weight"], of["eps"])


def _rope(of: Operands) -> Tensor:
    """As transformers has it: cos and sin are looked up and rounded to the dtype, and halves are turned."""
    import torch

    x, positions = of["x"], of["positions"]
    first, second = x.chunk(2, dim=-1)
    cos, sin = (of[table][positions].to(x.dtype).repeat(1, 2)[:, None] for table in ("cos", "sin"))
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _kv_write(of: Operands) -> tuple[Tensor, Tensor]:
    """Without clearing; every token has a slot."""
    k_cache, v_cache, slots = of["k_cache"], of["v_cache"], of["slot_mapping"]
    place = slots // k_cache.shape[2], slots % k_cache.shape[2]
    k_cache.transpose(1, 2).index_put_(place, of["k"])
    v_cache.transpose(1, 2).index_put_(place, of["v"])
    return k_cache, v_cache


def _kv_block_copy(of: Operands) -> tuple[Tensor, Tensor]:
    """No pair is padding."""
    k_cache, v_cache = of["k_cache"], of["v_cache"]
    sources, destinations = of["pairs"].long().unbind(1)
    for cache in (k_cache, v_cache):
        cache.index_copy_(0, destinations, cache[sources])
    return k_cache, v_cache


def _gated_activation(of: Operands) -> Tensor:
    import torch

    gate, up = of["gate_up"].chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def _router_top_k(of: Operands) -> tuple[Tensor, Tensor]:
    import torch

    weights, ids = torch.topk(torch.softmax(of["logits"], dim=-1, dtype=torch.float32), of["k"])
    return ids, weights / weights.sum(dim=-1, keepdim=True)


def _moe_dispatch(of: Operands) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Every (token, k) is routed. Sorted by expert, counted, and each expert's first row is a multiple of the tile."""
    import torch

    x, expert_ids, num_experts, tile = (of[name] for name in ("x", "expert_ids", "num_experts", "tile"))
    num_tokens, per_token = expert_ids.shape
    num_rows = dispatch_rows(num_tokens, per_token, num_experts, tile=tile)
    flat = expert_ids.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=x.device)
    counts.scatter_add_(0, flat.long(), torch.ones_like(flat, dtype=torch.int64))
    padded = (counts + tile - 1) // tile * tile
    starts = padded.cumsum(0) - padded
    sorted_ids = flat[order].long()
    place = starts[sorted_ids] + torch.arange(len(flat), device=x.device) - (counts.cumsum(0) - counts)[sorted_ids]
    src_token = torch.full((num_rows,), -1, dtype=torch.int64, device=x.device)
    src_token[place] = order // per_token
    rows = torch.zeros(num_rows, x.shape[1], dtype=x.dtype, device=x.device)
    rows[place] = x[order // per_token]
    row_of = torch.empty(len(flat), dtype=torch.int64, device=x.device)
    row_of[order] = place
    return torch.cat((starts, starts[-1:] + padded[-1:])), src_token, row_of.view(num_tokens, per_token), rows


def _moe_combine(of: Operands) -> Tensor:
    """Every (token, k) is routed."""
    rows = of["rows"]
    return (rows[of["row_of"]] * of["weights"][..., None]).sum(1).to(rows.dtype)


def dispatch_and_combine_by_torch(of: Operands) -> Tensor:
    _, _, row_of, rows = _moe_dispatch(of)
    return _moe_combine(Operands({"rows": rows, "row_of": row_of, "weights": of["weights"]}))


def _linear(of: Operands) -> Tensor:
    import torch

    if "residual" in of.arrays:
        return torch.addmm(of["residual"], of["x"], of["weight"].T, out=of.out[0])
    return torch.mm(of["x"], of["weight"].T, out=of.out[0])


def _gated_linear(of: Operands) -> Tensor:
    import torch

    gate, up = torch.mm(of["x"], of["weight"].T).chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def _vocabulary_head(of: Operands) -> tuple[Tensor, Tensor, Tensor]:
    """Logits in bfloat16, as engines have them, widened where they are asked for; and their largest."""
    import torch

    logits, token_ids, log_sum_exp = of.out
    product = torch.mm(of["x"], of["weight"].T)
    if "logits" in of["gives"]:
        logits.copy_(product)
    return logits, product.argmax(dim=-1) if "token_ids" in of["gives"] else token_ids, log_sum_exp


def _paged_attention(of: Operands) -> Tensor:
    """By way of contiguous keys. One query a request, all as long, in whole blocks; the table's last column pads."""
    import torch

    table = of["block_table"][:, :-1]
    keys, values = (of[name][table].transpose(1, 2).flatten(2, 3) for name in ("k_cache", "v_cache"))
    queries = of["q"][:, :, None]
    return torch.nn.functional.scaled_dot_product_attention(queries, keys, values, enable_gqa=True)[:, :, 0]


def _sample_tokens(of: Operands) -> Tensor:
    """As engines do it with torch's operations: an exponential race, after a sort where top-k or top-p asks for one. No
    row is masked, unusable, or asks for min-p."""
    import torch

    logits = of["logits"][:, : of["num_token_ids"]]
    if not of["draws"]:
        return logits.argmax(dim=-1)
    logits = logits / of["temperature"].clamp(min=1e-6)[:, None]
    ids = None
    if of["limits"] == "few":
        logits, ids = torch.topk(logits, min(64, logits.shape[1]))
        places = torch.arange(logits.shape[1], device=logits.device)
        logits = logits.masked_fill(places >= of["top_k"][:, None], -torch.inf)
    elif of["limits"] == "any":
        logits, ids = torch.sort(logits, dim=-1, descending=True)
    shares = torch.softmax(logits, dim=-1)
    if ids is not None:
        shares = shares.masked_fill(shares.cumsum(dim=-1) - shares >= of["top_p"][:, None], 0.0)
    place = (shares / torch.empty_like(shares).exponential_(1)).argmax(dim=-1, keepdim=True)
    return (place if ids is None else ids.gather(1, place))[:, 0]


def _token_log_probs(of: Operands) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Every row has a token."""
    import torch

    logits, column = of["logits"], of["token_ids"].clamp(min=0).long()[:, None]
    log_probs = torch.log_softmax(logits, dim=-1)
    top, ids = torch.topk(log_probs, of["num_top"])
    ranks = (logits > logits.gather(1, column)).sum(dim=-1) + 1
    return log_probs.gather(1, column)[:, 0], ranks, ids, top


def _adjust_logits(of: Operands) -> tuple[Tensor, Tensor]:
    """As engines do it with torch's operations: counts of every id, and every logit. There are no biases."""
    import torch

    logits, history, start = of["logits"], of["history"], of["history_start"].long()
    (num_rows, vocab), place = logits.shape, torch.arange(len(of["history"]), device=logits.device)
    row = torch.searchsorted(start[1:], place, right=True)
    is_prompt = place - start[row] < of["prompt_lens"][row]
    column = torch.where(history < 0, vocab, history).long()
    counts = torch.zeros(2, num_rows, vocab + 1, device=logits.device)
    counts.index_put_((is_prompt.long(), row, column), torch.ones((), device=logits.device), accumulate=True)
    output, prompt = counts[:, :, :vocab]
    repetition = torch.where(output + prompt > 0, of["repetition"][:, None], 1.0)
    logits.copy_(torch.where(logits > 0, logits / repetition, logits * repetition))
    logits.sub_(of["frequency"][:, None] * output + of["presence"][:, None] * (output > 0))
    return logits, of.out[0]


def _three_launches(of: Operands) -> None:
    """Our own kernels, one after another. k itself is overwritten too."""
    norm, turn, write = (load_function(f"optimized.kernels.{name}:{name}") for name in ("qk_norm", "rope", "kv_write"))
    q, k = of["q"], of["k"]
    norm(q, k, of["q_weight"], of["k_weight"], of["eps"])
    turn(q, of["positions"], of["cos"], of["sin"])
    turn(k, of["positions"], of["cos"], of["sin"])
    write(k, of["v"], of["k_cache"], of["v_cache"], of["slot_mapping"])


PEERS: dict[str, dict[str, Peer]] = {
    "embedding": {"torch": _embedding},
    "rms_norm": {"torch": _rms_norm},
    "add_rms_norm": {"torch": _add_rms_norm},
    "qk_norm": {"torch": _qk_norm},
    "rope": {"torch": _rope},
    "kv_write": {"torch": _kv_write},
    "kv_block_copy": {"torch": _kv_block_copy},
    "qk_norm_rope_kv_write": {"unfused": _three_launches},
    "gated_activation": {"torch": _gated_activation},
    "router_top_k": {"torch": _router_top_k},
    "moe_dispatch": {"torch": _moe_dispatch},
    "moe_combine": {"torch": _moe_combine},
    "paged_attention": {"torch": _paged_attention},
    "linear": {"cublas": _linear},
    "gated_linear": {"cublas": _gated_linear},
    "vocabulary_head": {"cublas": _vocabulary_head},
    "sample_tokens": {"torch operations": _sample_tokens},
    "token_log_probs": {"torch operations": _token_log_probs},
    "adjust_logits": {"torch operations": _adjust_logits},
}

# Of other libraries: twin, library, its function, and how that is called.
_LIBRARIES: tuple[tuple[str, str, str, Callable[[Any, Operands], Any]], ...] = (
    ("rms_norm", "quack", "rmsnorm", lambda peer, of: peer(of["x"], of["weight"], eps=of["eps"])),
    (
        "add_rms_norm",
        "quack",
        "rmsnorm",
        lambda peer, of: peer(of["x"], of["weight"], residual=of["residual"], eps=of["eps"], prenorm=True),
    ),
    ("rms_norm", "flashinfer", "rmsnorm", lambda peer, of: peer(of["x"], of["weight"], of["eps"], out=of.out[0])),
    (
        "add_rms_norm",  # in place
        "flashinfer",
        "fused_add_rmsnorm",
        lambda peer, of: peer(of["x"], of["residual"], of["weight"], of["eps"]),
    ),
    ("gated_activation", "flashinfer", "silu_and_mul", lambda peer, of: peer(of["gate_up"], out=of.out[0])),
    (
        "paged_attention",  # flash-attn-4, which has no splits of keys on Hopper
        "flash_attn.cute",
        "flash_attn_varlen_func",
        lambda peer, of: peer(
            of["q"],
            of["k_cache"].transpose(1, 2),
            of["v_cache"].transpose(1, 2),
            cu_seqlens_q=of["query_start"],
            max_seqlen_q=of["max_query_len"],
            max_seqlen_k=of["block_table"].shape[1] * of["k_cache"].shape[2],
            seqused_k=of["seq_lens"],
            page_table=of["block_table"],
            causal=True,
        ),
    ),
)


def installed(name: str) -> dict[str, Peer]:
    """The peers of a twin in libraries that are installed here. A library is imported by the first call of its peer."""
    return {
        library.partition(".")[0]: partial(_by_library, f"{library}:{function}", call)
        for twin, library, function, call in _LIBRARIES
        if twin == name and find_spec(library.partition(".")[0]) is not None
    }


def _by_library(function: str, call: Callable[[Any, Operands], Any], of: Operands) -> Any:
    return call(load_function(function), of)
