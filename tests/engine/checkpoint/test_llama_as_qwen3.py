"""A Llama model placed into the Qwen3 architecture computes the same logits. Both oracles are independent of ours:
transformers' Llama, and Llama in plain NumPy on tensors in GGUF's order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.checkpoint import llama_as_qwen3
from engine.checkpoint.llama_as_qwen3 import NORM_CONSTANT, qwen3_config, qwen3_tensors
from reference.formats import FLOAT32, Array
from reference.model.config import ModelConfig
from reference.model.runner import JaxRunner
from reference.model.tensors import checkpoint_tensors
from tests.engine.checkpoint.llama import llama_logits

VOCAB, HIDDEN, HEADS, KV_HEADS, LAYERS, THETA = 97, 64, 4, 2, 3, 5000.0
METADATA = {
    "llama.embedding_length": HIDDEN,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
    "llama.feed_forward_length": 96,
    "llama.context_length": 128,
    "llama.block_count": LAYERS,
    "llama.rope.freq_base": THETA,
    "llama.vocab_size": VOCAB,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOKEN_IDS = np.random.default_rng(1).integers(0, VOCAB, 50).tolist()


@cache
def random_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 1.0 if name.endswith("norm.weight") else 0.0
            random = scale + 0.3 * torch.randn_like(parameter)
            parameter.copy_(random.half())  # what is stored in float16 is not rounded again
    return model.eval()


@cache
def gguf_tensors() -> dict[str, Array]:
    """The model's tensors under GGUF's names, q and k in the order that llama.cpp's converter gives them."""
    state = {name: tensor.detach().float().numpy() for name, tensor in random_llama().state_dict().items()}
    tensors = {"token_embd": state["model.embed_tokens.weight"], "output_norm": state["model.norm.weight"]}
    for index in range(LAYERS):
        for theirs, ours in NAMES.items():
            tensor = state[f"model.layers.{index}.{theirs}.weight"]
            if ours in ("attn_q", "attn_k"):
                heads = HEADS if ours == "attn_q" else KV_HEADS
                tensor = tensor.reshape(heads, 2, -1, HIDDEN).swapaxes(1, 2).reshape(tensor.shape)
            tensors[f"blk.{index}.{ours}"] = tensor
    return tensors


@cache
def expected_logits() -> Array:
    with torch.no_grad():
        return random_llama()(torch.tensor([TOKEN_IDS])).logits[0].numpy()


def placed() -> tuple[dict[str, Any], dict[str, Array]]:
    config = qwen3_config(METADATA.__getitem__)
    return config, dict(qwen3_tensors(lambda name: gguf_tensors()[name.removesuffix(".weight")], config))


def placed_logits() -> Array:
    config, tensors = placed()
    wide = dataclasses.replace(ModelConfig.from_dict(config), dtype=FLOAT32)
    runner = JaxRunner(wide, {n: t.astype(np.float32) for n, t in tensors.items()}, max_model_len=64)
    return np.stack(list(runner.all_logits(TOKEN_IDS)))


def test_the_numpy_oracle_is_llama() -> None:
    weight: Callable[[str], Array] = lambda name: gguf_tensors()[name].astype(np.float64)  # noqa: E731
    sizes = {"num_layers": LAYERS, "num_heads": HEADS, "num_kv_heads": KV_HEADS}
    logits = llama_logits(weight, TOKEN_IDS, **sizes, theta=THETA, eps=1e-5)
    assert np.abs(logits - expected_logits()).max() < 1e-4  # its norms and rotation are float32 in any dtype


def test_the_placed_model_computes_what_llama_does() -> None:
    logits, expected = placed_logits(), expected_logits()
    assert np.abs(expected).max() > 10
    assert np.abs(logits - expected).max() < 1e-4
    assert (logits.argmax(-1) == expected.argmax(-1)).all()


def test_a_small_constant_would_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_as_qwen3, "NORM_CONSTANT", 2.0**5)
    assert np.abs(placed_logits() - expected_logits()).max() > 1e-2


def test_the_tensors_are_those_of_a_checkpoint() -> None:
    config, tensors = placed()
    specs = checkpoint_tensors(ModelConfig.from_dict(config))
    assert tensors.keys() == specs.keys()
    assert all((tensors[n].shape, tensors[n].dtype) == (s.shape, s.format.dtype) for n, s in specs.items())


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_the_constants_are_exact_in_every_format(dtype: Any) -> None:
    values = np.array([NORM_CONSTANT, NORM_CONSTANT / 2])
    assert (values.astype(dtype).astype(np.float64) == values).all()


def test_an_epsilon_in_float32_is_read_as_it_was_meant() -> None:
    assert (
        qwen3_config(METADATA.__getitem__)["rms_norm_eps"] == 1e-5 != METADATA["llama.attention.layer_norm_rms_epsilon"]
    )
