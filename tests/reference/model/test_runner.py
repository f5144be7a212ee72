"""The JAX runner: buckets, padding, compiled code that is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.model.runner import JaxRunner, bucket_length
from tests.reference.model.models import DENSE, VOCAB_SIZE, random_checkpoint

LIMIT = 70  # past one block of logits


@pytest.fixture(scope="module", params=["qwen3", "qwen3_moe"])
def runner(request: pytest.FixtureRequest) -> JaxRunner:
    config, tensors = random_checkpoint(request.param)
    return JaxRunner(config, tensors, max_model_len=LIMIT)


def tokens(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, VOCAB_SIZE, length).tolist()


@given(st.integers(1, 200_000))
def test_a_bucket_holds_its_sequence_and_wastes_at_most_a_third(length: int) -> None:
    bucket = bucket_length(length)
    assert length <= bucket
    assert bucket <= max(16, 1.5 * length)
    assert bucket_length(bucket) == bucket


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33, LIMIT])
def test_what_follows_a_position_does_not_reach_it(runner: JaxRunner, length: int) -> None:
    """Neither padding nor later tokens change a row: the row of a prefix is the row of the whole."""
    whole = list(runner.all_logits(tokens(LIMIT)))
    row = runner.last_logits(tokens(LIMIT)[:length])
    np.testing.assert_allclose(row, whole[length - 1], rtol=1e-4, atol=1e-4)
    assert not np.allclose(row, whole[length - 2] if length > 1 else whole[1], atol=1e-2)


def test_all_logits_has_one_row_a_token(runner: JaxRunner) -> None:
    for length in (1, 63, 64, 65, LIMIT):
        rows = list(runner.all_logits(tokens(length)))
        assert len(rows) == length
        assert all(row.shape == (VOCAB_SIZE,) and row.dtype == np.float32 for row in rows)
        np.testing.assert_allclose(rows[-1], runner.last_logits(tokens(length)), rtol=1e-5, atol=1e-5)


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of what JAX compiles meanwhile, single operations outside `jax.jit` included."""
    seen: list[str] = []

    def listen(event: str, duration_secs: float, **details: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(str(details.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_a_bucket_is_compiled_once_whatever_is_asked_of_it() -> None:
    runner = JaxRunner(*random_checkpoint("qwen3", num_hidden_layers=3), max_model_len=LIMIT)
    with compilations() as first:
        runner.last_logits(tokens(17))
        list(runner.all_logits(tokens(17)))
    assert 0 < len([name for name in first if "lambda" in name]) <= 3  # the layer, logits of one row and of many
    with compilations() as later:
        for length in range(18, 25):
            runner.last_logits(tokens(length))
            list(runner.all_logits(tokens(length)))
    assert not later


@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_moe"])
def test_padding_that_overflows_harms_no_token(model_type: str) -> None:
    """Sequences are padded with id 0: here one whose value overflows float16 where those of others do not."""
    config, tensors = random_checkpoint(model_type, dtype="float16", num_hidden_layers=2)
    scaled = {name: tensor * 1e4 for name, tensor in tensors.items() if "v_proj" in name}
    scaled |= {name: tensor * 1e-4 for name, tensor in tensors.items() if "o_proj" in name}
    table = tensors["model.embed_tokens.weight"].copy()
    table[0] = tensors["model.layers.0.self_attn.v_proj.weight"][0]  # the channel's own direction: 8 times the usual
    sound = JaxRunner(config, tensors | scaled, max_model_len=16).last_logits([5, 6, 7])
    runner = JaxRunner(config, tensors | scaled | {"model.embed_tokens.weight": table}, max_model_len=16)
    row = runner.last_logits([5, 6, 7])
    np.testing.assert_array_equal(row[1:], sound[1:])
    assert np.isfinite(row).all()
    assert not np.isfinite(runner.last_logits([5, 0, 7])).all(), "nothing overflows: this test shows nothing"


@pytest.mark.parametrize("length", [0, LIMIT + 1])
def test_a_sequence_of_no_length_or_too_long_is_refused(runner: JaxRunner, length: int) -> None:
    with pytest.raises(ValueError, match=f"{length} tokens; expected 1 to {LIMIT}"):
        runner.last_logits([1] * length)


def test_compiled_code_is_found_again_by_a_later_process(tmp_path: Path) -> None:
    program = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "import numpy as np\n"
        "from reference.model.config import ModelConfig\n"
        "from reference.model.runner import JaxRunner, keep_compiled_code\n"
        "from reference.model.tensors import checkpoint_tensors\n"
        "keep_compiled_code(Path(sys.argv[1]))\n"
        "config = ModelConfig.from_dict(json.loads(sys.argv[2]))\n"
        "tensors = {name: np.ones(spec.shape, np.float32) for name, spec in checkpoint_tensors(config).items()}\n"
        "print(JaxRunner(config, tensors, max_model_len=16).last_logits([1, 2, 3])[0])\n"
    )

    shape = DENSE | {"model_type": "qwen3", "dtype": "float32", "num_hidden_layers": 1}

    def run() -> tuple[str, set[Path]]:
        command = [sys.executable, "-c", program, str(tmp_path), json.dumps(shape)]
        done = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
        return done.stdout, {path for path in tmp_path.iterdir() if path.name.endswith("-cache")}

    first, written = run()
    assert written
    second, after = run()
    assert first == second
    assert after == written, "the second process compiled something anew"


def test_missing_and_misshapen_tensors_are_named() -> None:
    config, tensors = random_checkpoint("qwen3")

    def load(changed: dict[str, Any]) -> None:
        JaxRunner(config, {k: v for k, v in (tensors | changed).items() if v is not None}, max_model_len=8)

    name = "model.layers.1.self_attn.k_norm.weight"
    with pytest.raises(KeyError, match=name):
        load({name: None})
    with pytest.raises(ValueError, match=rf"{name} has shape \[3\]; the config asks for \[16\]"):
        load({name: np.zeros(3, np.float32)})
