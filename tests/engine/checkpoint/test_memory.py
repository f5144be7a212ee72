"""Weights are held once: what a process allocates to load a checkpoint is about the size of the checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from reference.model.config import ModelConfig
from reference.model.tensors import checkpoint_tensors

ROOT = Path(__file__).parents[3]
SHAPE: dict[str, Any] = {
    "vocab_size": 16384,
    "hidden_size": 512,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "dtype": "bfloat16",
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 256}

PROGRAM = """
import re, sys
import jax.numpy as jnp
from engine.checkpoint import open_checkpoint
from reference.model.runner import JaxRunner

def allocated():  # bytes of this process that are no file's pages
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1])

jnp.ones(3).block_until_ready()
before = allocated()
checkpoint = open_checkpoint(sys.argv[1])
opened = allocated()
runner = JaxRunner(checkpoint.config, checkpoint.tensors, max_model_len=64)
print(checkpoint.num_bytes, opened - before, allocated() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc to measure memory")
@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_moe"])
def test_weights_are_held_once(model_type: str, tmp_path: Path) -> None:
    raw = SHAPE | {"model_type": model_type} | (EXPERTS if model_type == "qwen3_moe" else {})
    (tmp_path / "config.json").write_text(json.dumps(raw))
    specs = checkpoint_tensors(ModelConfig.from_dict(raw))
    save_file(
        {name: np.full(spec.shape, 0.01, ml_dtypes.bfloat16) for name, spec in specs.items()},
        tmp_path / "model.safetensors",
    )
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    size, opened, loaded = map(int, done.stdout.split())
    assert size > 100e6
    assert opened < 0.05 * size, "opening read the weights"
    assert loaded < 1.7 * size, "held twice would be 2; JAX itself takes some 50 MB"
