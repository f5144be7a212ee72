"""Small cases of every twin, which a chip has run and the simulator runs after it.

Each is a configuration as corners are, with few elements: every dtype, every kind of kernel, every width of access,
odd values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from parity.twin import Config

DTYPES = ("bfloat16", "float16", "float32")
Changes = dict[str, Any]  # of a twin's base configuration


def _changes(*lists: Sequence[Changes]) -> list[Changes]:
    """One after another, each list first."""
    return [change for one in lists for change in one]


def _of_dtypes(*changes: Changes) -> list[Changes]:
    return [change | {"dtype": dtype} for dtype in DTYPES for change in changes]


_NORMS = _changes(
    _of_dtypes(
        {"tokens": 3, "hidden": 512},
        {"tokens": 7, "hidden": 72},
        {"tokens": 2, "hidden": 769},
        {"tokens": 5, "hidden": 256, "rows": "nan"},
        {"tokens": 5, "hidden": 256, "rows": "tiny"},
    ),
    [{"tokens": 5, "hidden": 256, "rows": rows} for rows in ("inf", "zeros", "huge")],
    [{"tokens": 1, "hidden": 4096}, {"tokens": 9, "hidden": 128, "weight_bias": 1.0}, {"tokens": 9, "hidden": 1}],
    [{"tokens": 5, "hidden": 256, "row_stride": stride} for stride in (512, 259)],
)
_HEADS = {"heads": 4, "kv_heads": 2, "head_dim": 64}
_CACHE = {"blocks": 6, "heads": 2, "block_size": 16, "head_dim": 64}
CHANGES: dict[str, list[Changes]] = {
    "add_rms_norm": _changes(
        _NORMS,
        [{"tokens": 5, "hidden": 256, "rows": "cancelled"}, {"tokens": 5, "hidden": 256, "weight_dtype": "float32"}],
        [{"tokens": 5, "hidden": 256, "residual_stride": stride, "row_stride": 512} for stride in (512, 259)],
    ),
    "rms_norm": _changes(
        _NORMS,
        [{"tokens": 5, "hidden": 256, "eps": 0.25}],
        [
            {"tokens": 5, "hidden": 256, "dtype": dtype, "weight_dtype": other}
            for dtype, other in (("bfloat16", "float32"), ("float32", "bfloat16"))
        ],
    ),
    "embedding": _changes(
        _of_dtypes(
            {"tokens": 3, "hidden": 1024},
            {"tokens": 7, "hidden": 72},
            {"tokens": 7, "hidden": 769},
            {"tokens": 133, "hidden": 64},
            {"tokens": 9, "hidden": 512, "row_stride": 1539},
        ),
        [{"tokens": 0}, {"tokens": 30, "vocabulary": 1}, {"tokens": 9, "hidden": 512, "row_stride": 1536}],
    ),
    "gated_activation": _changes(
        [
            {"tokens": 3, "intermediate": 256, "dtype": dtype, "kind": kind}
            for dtype in DTYPES
            for kind in ("silu", "gelu", "gelu_pytorch_tanh")
        ],
        [
            {"tokens": 32, "intermediate": 64, "dtype": dtype, "kind": kind, "values": "edges"}
            for dtype in ("bfloat16", "float32")
            for kind in ("silu", "gelu", "gelu_pytorch_tanh")
        ],
        [{"tokens": 5, "intermediate": 256, "kind": kind, "values": "wide"} for kind in ("silu", "gelu")],
        [{"tokens": 16, "intermediate": 64, "values": "edges of up"}],
        _of_dtypes({"tokens": 7, "intermediate": 72}, {"tokens": 3, "intermediate": 769}),
        [{"tokens": 5, "intermediate": 256, "row_stride": stride} for stride in (640, 515)],
    ),
    "kv_block_copy": _changes(
        _of_dtypes(_CACHE, _CACHE | {"pairs": 1}, _CACHE | {"heads": 1, "block_size": 7, "head_dim": 5}),
        _of_dtypes(_CACHE | {"block_stride": 2 * 16 * 64 + 8}, _CACHE | {"block_stride": 2 * 16 * 64 + 3}),
        [_CACHE | {"pairs": 0}, _CACHE | {"pairs": 6, "blocks": 12}, _CACHE | {"pairs": 3, "mixed": False}],
    ),
    "kv_write": _changes(
        _of_dtypes(_CACHE, _CACHE | {"mapping": "decode", "tokens": 4}, _CACHE | {"mapping": "scattered"}),
        [_CACHE | {"mapping": mapping} for mapping in ("steady", "whole", "openers", "padding")],
        _of_dtypes(_CACHE | {"heads": 1, "block_size": 24, "head_dim": 72, "tokens": 20}),
        [_CACHE | {"token_stride": 512}, _CACHE | {"token_stride": 259}, _CACHE | {"v_stride": 515}],
        [_CACHE | {"v_block_stride": 2 * 16 * 64 + 8}, _CACHE | {"block_size": 1, "blocks": 60}],
        [_CACHE | {"dtype": "float32", "cache_dtype": cache} for cache in ("bfloat16", "float16")],
    ),
    "moe_combine": _changes(
        _of_dtypes(
            {"tokens": 3, "hidden": 512},
            {"tokens": 7, "hidden": 72},
            {"tokens": 2, "hidden": 769},
            {"tokens": 9, "hidden": 256, "rows": "nan"},
            {"tokens": 9, "hidden": 256, "rows": "tiny"},
        ),
        [{"tokens": 9, "hidden": 256, "rows": rows} for rows in ("inf", "zeros", "huge")],
        [{"tokens": 5, "hidden": 256, "per_token": count} for count in (1, 2, 3)],
        [{"tokens": 9, "hidden": 128, "unrouted": share} for share in (0.0, 1.0)],
        [{"tokens": 1, "hidden": 4096}, {"tokens": 9, "hidden": 256, "row_stride": 259}],
    ),
    "moe_dispatch": _changes(
        [{"tokens": tokens, "hidden": 64} for tokens in (0, 1, 8, 64, 130, 300)],
        [{"tokens": 100, "hidden": 64, "routing": routing} for routing in ("one", "few", "repeats", "invalid", "none")],
        [{"tokens": 600, "hidden": 16, "routing": routing} for routing in ("even", "repeats")],
        [{"tokens": 600, "experts": 384, "per_token": 2, "tile": 128, "hidden": 16, "routing": "invalid"}],
        [{"tokens": 40, "experts": 1, "per_token": 1}, {"tokens": 33, "experts": 512, "per_token": 5, "tile": 1}],
        _of_dtypes({"tokens": 20, "hidden": 512}, {"tokens": 5, "hidden": 769}),
        [{"tokens": 20, "row_stride": stride} for stride in (1024, 259)],
    ),
    "qk_norm": _changes(
        [_HEADS | {"tokens": 2, "dtype": dtype, "head_dim": width} for dtype in DTYPES for width in (64, 128, 256)],
        _of_dtypes(_HEADS | {"tokens": 5, "rows": "nan"}, _HEADS | {"tokens": 5, "rows": "tiny"}),
        [_HEADS | {"tokens": 5, "rows": rows} for rows in ("inf", "zeros", "huge")],
        [_HEADS | {"tokens": 3, "heads": 7, "kv_heads": 1}, _HEADS | {"tokens": 5, "weight_bias": 1.0}],
        [_HEADS | {"tokens": 5, "token_stride": stride} for stride in (512, 515)],
        [_HEADS | {"tokens": 5, "weight_dtype": "float32"}, _HEADS | {"tokens": 5, "eps": 0.25}],
    ),
    "qk_norm_rope_kv_write": _changes(
        [_HEADS | {"tokens": 2, "dtype": dtype, "head_dim": width} for dtype in DTYPES for width in (64, 128, 256)],
        _of_dtypes(_HEADS | {"tokens": 5, "rows": "nan"}, _HEADS | {"tokens": 5, "rows": "tiny"}),
        [_HEADS | {"tokens": 9, "kind": kind} for kind in ("decode", "whole", "continued", "padded", "unwritten")],
        [_HEADS | {"tokens": 5, "heads": 5, "kv_heads": 1, "block_size": 24, "slot_dtype": "int32"}],
        [_HEADS | {"tokens": 5, "token_stride": stride, "gap": gap} for stride, gap in ((512, 64), (515, 7))],
        [_HEADS | {"tokens": 5, "weight_dtype": "float32"}],
    ),
    "rope": _changes(
        [{"tokens": 3, "heads": 4, "dtype": dtype, "head_dim": width} for dtype in DTYPES for width in (64, 128, 256)],
        _of_dtypes({"tokens": 9, "heads": 1}, {"tokens": 5, "heads": 2, "rows": "nan"}),
        [{"tokens": 5, "heads": 2, "token_stride": stride} for stride in (512, 515)],
        [{"tokens": 9, "heads": 2, "head_dim": 6}, {"tokens": 5, "heads": 2, "positions": 1}],
        [{"tokens": 20, "heads": 2, "order": "prompt"}],
    ),
    "router_top_k": _changes(
        _of_dtypes(
            {},
            {"logits": "ties"},
            {"logits": "nan"},
            {"logits": "wide"},
            {"experts": 384, "k": 6, "normalize": False},
        ),
        [{"logits": logits} for logits in ("zeros", "inf", "subnormal")],
        [{"experts": experts, "k": k} for experts, k in ((1, 1), (5, 5), (16, 16), (33, 2), (512, 32))],
        [{"row_stride": 131}],
    ),
}


def configurations(twin: str) -> Iterator[Config]:
    base = import_module(f"parity.cases.{twin}").BASE
    for changes in CHANGES[twin]:
        yield base | changes


def all_cases() -> list[tuple[str, Config]]:
    return [(twin, config) for twin in sorted(CHANGES) for config in configurations(twin)]
