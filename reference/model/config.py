"""The shape of a Qwen3 model, read from a Hugging Face `config.json`. Declarations only: no arithmetic, no JAX.

Both spellings that occur in the wild are understood: `num_experts` / `num_local_experts`,
`rope_theta` + `rope_scaling` / `rope_parameters`, `torch_dtype` / `dtype`, "type" / "rope_type".
What would change the answer and is not implemented (sliding windows, partial rotation, RoPE scalings other than linear
and YaRN, quantizations other than FP8 in 128 x 128 blocks) is refused by name, never ignored. A field that is missing
has the value that transformers gives it; the sizes that every checkpoint states must be there.
Source: transformers `Qwen3Config`, `Qwen3MoeConfig`; the Qwen3 technical report, arXiv:2505.09388.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference.formats import ACTIVATION_FORMATS, FP8_WEIGHT_BLOCK, Format, format_named
from reference.model.fields import ConfigError, count, flag, missing, number, size

__all__ = ["ACTIVATIONS", "ARCHITECTURES", "ConfigError", "ModelConfig", "RopeConfig"]

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}

# transformers' values for what is missing (not null); its Qwen3MoeConfig has no head_dim, so hidden / heads it is.
MISSING_NUM_KV_HEADS = {"qwen3": 32, "qwen3_moe": 4}
MISSING_HEAD_DIM = {"qwen3": 128}
MISSING_NUM_EXPERTS = 128

# All that is understood of `rope_scaling` or `rope_parameters`: another key could change every frequency.
ROPE_KEYS = {"rope_theta", "rope_type", "type", "factor", "original_max_position_embeddings", "attention_factor"}
ROPE_KEYS |= {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "partial_rotary_factor"}
# Of an FP8 `quantization_config`, the values that are understood; the two lists of modules are read apart.
FP8_VALUES: dict[str, tuple[Any, ...]] = {
    "quant_method": ("fp8",),
    "fmt": ("e4m3",),
    "weight_block_size": (list(FP8_WEIGHT_BLOCK),),
    "activation_scheme": ("dynamic",),
    "scale_fmt": ("float", None),
    "expert_dtype": ("fp8", None),
    "dequantize": (False, None),
    "modules_to_convert": ([], None),
}


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: base, and how its frequencies are stretched for long contexts.

    kind: "default", "linear" (positions divided by `factor`) or "yarn" (arXiv:2309.00071).
    original_max_position_embeddings, beta_fast, beta_slow, attention_factor matter to YaRN alone;
    attention_factor None means 0.1 ln(factor) + 1.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None


@dataclass(frozen=True)
class ModelConfig:
    """Everything about a Qwen3 model that is fixed before its weights are read. Sizes are in elements."""

    model_type: str  # "qwen3" or "qwen3_moe"
    vocab_size: int  # rows of the embedding, padding included
    hidden_size: int
    intermediate_size: int  # of a dense MLP
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int  # its own field: not hidden_size / num_heads in general
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool  # q, k, v and o projections carry a bias
    activation: str
    dtype: Format  # of activations, and of weights that are not quantized
    fp8_blocks: bool = False  # weights are e4m3 in 128 x 128 blocks, with `weight_scale_inv` beside them
    unquantized_modules: tuple[str, ...] = ()  # an FP8 checkpoint's `modules_to_not_convert`, or `ignored_layers`
    num_experts: int = 0
    num_experts_per_token: int = 0
    moe_intermediate_size: int = 0  # of one expert
    norm_topk_prob: bool = False
    sparse_layers: tuple[bool, ...] = ()  # one a layer: is its MLP a mixture of experts?
    num_mtp_layers: int = 0  # multi-token-prediction layers of the Qwen3-Next kind (`mtp.*` tensors)

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @classmethod
    def from_file(cls, path: str | Path) -> ModelConfig:
        """Read a `config.json`. Errors: ConfigError that names the file."""
        try:
            with open(path, encoding="utf-8") as file:
                raw = json.load(file)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not JSON: {error}") from None
        try:
            return cls.from_dict(raw)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Build from the parsed JSON object. Errors: ConfigError that names the field."""
        if not isinstance(raw, Mapping):
            raise ConfigError(f"expected a JSON object, got {type(raw).__name__}")
        model_type = raw.get("model_type")
        if model_type not in ARCHITECTURES:
            raise ConfigError(f"model_type is {model_type!r}; this build serves {', '.join(ARCHITECTURES)}")
        _refuse_sliding_window(raw)
        activation = raw.get("hidden_act", "silu")
        if activation not in ACTIVATIONS:
            raise ConfigError(f"hidden_act is {activation!r}; known are {', '.join(ACTIVATIONS)}")
        num_layers, num_heads = size(raw, "num_hidden_layers"), size(raw, "num_attention_heads")
        hidden_size = size(raw, "hidden_size")
        num_kv_heads, head_dim = num_heads, hidden_size // num_heads  # what null means
        if "num_key_value_heads" not in raw:
            num_kv_heads = MISSING_NUM_KV_HEADS[model_type]
        if "head_dim" not in raw:
            head_dim = MISSING_HEAD_DIM.get(model_type, head_dim)
        num_kv_heads = size(raw, "num_key_value_heads", default=num_kv_heads)
        head_dim = size(raw, "head_dim", default=head_dim)
        if num_heads % num_kv_heads:
            raise ConfigError(
                f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
            )
        if head_dim % 2:
            raise ConfigError(f"head_dim is {head_dim}; rotary embedding needs an even one")
        max_positions = size(raw, "max_position_embeddings", default=32768)
        fp8_blocks, unquantized = _quantization(raw)
        return cls(
            model_type=model_type,
            vocab_size=size(raw, "vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=size(raw, "intermediate_size"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rms_norm_eps=number(raw, "rms_norm_eps", 1e-6),
            rope=_rope(raw, max_positions),
            max_position_embeddings=max_positions,
            tie_word_embeddings=flag(raw, "tie_word_embeddings"),
            attention_bias=flag(raw, "attention_bias"),
            activation=activation,
            dtype=_dtype(raw),
            fp8_blocks=fp8_blocks,
            unquantized_modules=unquantized,
            num_mtp_layers=count(raw, "num_nextn_predict_layers", default=0),
            **(_experts(raw, num_layers) if model_type == "qwen3_moe" else {"sparse_layers": (False,) * num_layers}),
        )


def _dtype(raw: Mapping[str, Any]) -> Format:
    name = raw.get("dtype") or raw.get("torch_dtype") or "bfloat16"
    try:
        format_ = format_named(str(name))
    except ValueError as error:
        raise ConfigError(f"dtype: {error}") from None
    if format_ not in ACTIVATION_FORMATS:
        allowed = ", ".join(f.name for f in ACTIVATION_FORMATS)
        raise ConfigError(f"dtype is {name!r}; activations are one of {allowed}")
    return format_


def _refuse_sliding_window(raw: Mapping[str, Any]) -> None:
    windowed = [kind for kind in raw.get("layer_types") or () if kind != "full_attention"]
    if raw.get("use_sliding_window") or windowed:
        raise ConfigError("use_sliding_window: sliding-window attention is not implemented; set it to false")


def _rope(raw: Mapping[str, Any], max_positions: int) -> RopeConfig:
    # transformers 5 nests everything in rope_parameters; before, rope_theta stood apart and rope_scaling could be null.
    # As there, a rope_scaling hides a rope_parameters, and an original context beside them hides theirs.
    nested = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(nested, Mapping) or not ROPE_KEYS.issuperset(nested):
        raise ConfigError(f"rope_scaling or rope_parameters is {nested!r}; known are {', '.join(sorted(ROPE_KEYS))}")
    merged = {"rope_theta": raw.get("rope_theta", 10000.0), **nested}
    for name in ("partial_rotary_factor", "original_max_position_embeddings"):
        if not missing(raw, name):
            merged[name] = raw[name]
    if merged.get("partial_rotary_factor", 1.0) not in (1.0, None):
        raise ConfigError(f"partial_rotary_factor is {merged['partial_rotary_factor']!r}; Qwen3 rotates whole heads")
    theta = number(merged, "rope_theta")
    kind = merged.get("rope_type", merged.get("type", "default"))
    if kind == "default":
        return RopeConfig(theta)
    if kind == "dynamic":
        raise ConfigError(
            "rope scaling 'dynamic' changes every frequency as a sequence grows, so keys that are already cached "
            "would be wrong; use 'yarn' or 'linear'"
        )
    if kind not in ("linear", "yarn"):
        raise ConfigError(f"rope scaling is {kind!r}; known are 'default', 'linear' and 'yarn'")
    factor = number(merged, "factor")
    if kind == "linear":
        return RopeConfig(theta, kind, factor)
    if merged.get("mscale") or merged.get("mscale_all_dim") or not merged.get("truncate", True):
        raise ConfigError("rope scaling 'yarn' with mscale, mscale_all_dim or truncate=false is not implemented")
    return RopeConfig(
        theta,
        kind,
        factor,
        original_max_position_embeddings=size(merged, "original_max_position_embeddings", default=max_positions),
        beta_fast=number(merged, "beta_fast", 32.0),
        beta_slow=number(merged, "beta_slow", 1.0),
        attention_factor=None if missing(merged, "attention_factor") else number(merged, "attention_factor"),
    )


def _quantization(raw: Mapping[str, Any]) -> tuple[bool, tuple[str, ...]]:
    """Is it FP8 in blocks, and which modules are not? Errors: ConfigError for any other quantization."""
    if not missing(raw, "compression_config"):
        raise ConfigError("compression_config: compressed tensors are not implemented; known is quant_method 'fp8'")
    quantization = raw.get("quantization_config")
    if not quantization:
        return False, ()
    if not isinstance(quantization, Mapping):
        raise ConfigError(f"quantization_config is {quantization!r}; expected an object")
    lists = ("modules_to_not_convert", "ignored_layers")  # of two spellings, transformers prefers the first
    for name in ("quant_method", "weight_block_size", *(key for key in quantization if key not in lists)):
        value, known = quantization.get(name), FP8_VALUES.get(name, ())
        if value not in known:
            expected = " or ".join(map(repr, known)) or f"none of it; understood are {', '.join((*FP8_VALUES, *lists))}"
            raise ConfigError(f"quantization_config.{name} is {value!r}; expected {expected}")
    named = [quantization[name] for name in lists if not missing(quantization, name)]
    modules = named[0] if named else []
    # A name may be a pattern to others. One that is not plain would be compared in vain, and so ignored.
    if not isinstance(modules, list) or not all(
        isinstance(m, str) and m.replace(".", "_").isidentifier() for m in modules
    ):
        raise ConfigError(f"quantization_config: expected a list of plain names of modules, got {modules!r}")
    return True, tuple(modules)


def _experts(raw: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    spelling = "num_experts" if missing(raw, "num_local_experts") else "num_local_experts"
    num_experts = count(raw, spelling, default=MISSING_NUM_EXPERTS)
    if not missing(raw, "num_experts") and raw["num_experts"] != num_experts:
        raise ConfigError(f"num_experts is {raw['num_experts']!r}, but num_local_experts is {num_experts}")
    dense = raw.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise ConfigError(f"mlp_only_layers is {dense!r}; expected a list of layers")
    step = size(raw, "decoder_sparse_step", default=1)
    sparse = tuple(i not in dense and num_experts > 0 and (i + 1) % step == 0 for i in range(num_layers))
    if num_experts == 0:
        return {"sparse_layers": sparse}
    top_k = size(raw, "num_experts_per_tok", default=8)
    if top_k > num_experts:
        raise ConfigError(f"num_experts_per_tok {top_k} exceeds {spelling} {num_experts}")
    return {
        "num_experts": num_experts,
        "num_experts_per_token": top_k,
        "moe_intermediate_size": size(raw, "moe_intermediate_size"),
        "norm_topk_prob": flag(raw, "norm_topk_prob"),
        "sparse_layers": sparse,
    }
