"""The mixture of experts of a layer, by as many rows as an expert has.

    few pairs of token and expert      the products find an expert's tokens themselves: no dispatch, no combine
    few rows an expert                 dispatch without padding, grouped products that stream each weight once
    many                               dispatch to whole tiles, the grouped products of a library

Which of them is right is `path_of`, a pure function of shapes.
"""

from __future__ import annotations

from enum import Enum

from optimized.device import Tensor
from optimized.kernels.few_rows_routed import MOST_PAIRS
from optimized.kernels.gated_activation import gated_activation
from optimized.kernels.grouped_gated_linear import grouped_gated_linear
from optimized.kernels.grouped_linear import grouped_linear
from optimized.kernels.grouped_linear_many_rows import grouped_linear_many_rows
from optimized.kernels.linear import linear
from optimized.kernels.moe_combine import moe_combine
from optimized.kernels.moe_dispatch import moe_dispatch
from optimized.kernels.routed_gated_linear import routed_gated_linear
from optimized.kernels.routed_linear import routed_linear
from optimized.kernels.router_top_k import router_top_k
from optimized.model.stream import Stream
from optimized.model.weights import MlpWeights
from reference.model.config import ModelConfig

EXPERT_TILE = 128  # rows to which an expert's are padded for a library's product
FEW_ROWS_AN_EXPERT = 32  # of routed pairs, on average: more are compute, which tensor cores of a library do faster


class Path(Enum):
    ROUTED = "routed"
    GROUPED = "grouped"
    MANY_ROWS = "many rows"


def path_of(num_tokens: int, experts_per_token: int, num_experts: int) -> Path:
    pairs = num_tokens * experts_per_token
    if pairs <= MOST_PAIRS:
        return Path.ROUTED
    return Path.GROUPED if pairs <= FEW_ROWS_AN_EXPERT * num_experts else Path.MANY_ROWS


def add_experts(stream: Stream, normed: Tensor, weights: MlpWeights, config: ModelConfig) -> None:
    """Each token's experts, weighted, to the stream; or waiting to be added to it."""
    assert weights.router is not None
    num_tokens, top_k, kind = normed.shape[0], config.num_experts_per_token, config.activation
    logits = linear(normed, weights.router, pdl=True)
    expert_ids, expert_weights = router_top_k(logits, top_k, normalize=config.norm_topk_prob, pdl=True)
    path = path_of(num_tokens, top_k, config.num_experts)
    if path is Path.ROUTED:
        inner = routed_gated_linear(normed, weights.gate_up, expert_ids, kind=kind, pdl=True)
        chosen = expert_ids, expert_weights
        stream.x = routed_linear(inner, weights.down, *chosen, stream.x, pdl=True, out=stream.x)
        return
    tile = 1 if path is Path.GROUPED else EXPERT_TILE
    offsets, src_token, row_of, rows = moe_dispatch(normed, expert_ids, config.num_experts, tile=tile)
    if path is Path.GROUPED:
        inner = grouped_gated_linear(normed, weights.gate_up, offsets, src_token, kind=kind, pdl=True)
        out = grouped_linear(inner, weights.down, offsets, pdl=True)
    else:
        inner = _many_rows(rows, weights.gate_up, offsets, kind)
        out = grouped_linear_many_rows(inner, weights.down, offsets)
    stream.waiting = moe_combine(out, row_of, expert_weights, pdl=True)


def _many_rows(rows: Tensor, gate_up: Tensor, offsets: Tensor, kind: str) -> Tensor:
    if kind == "silu":
        return grouped_linear_many_rows(rows, gate_up, offsets, activation=kind)
    return gated_activation(grouped_linear_many_rows(rows, gate_up, offsets), kind=kind)
