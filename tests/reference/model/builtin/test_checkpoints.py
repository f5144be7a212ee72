"""The two trained checkpoints: what they hold, what they know, how sure they are."""

from __future__ import annotations

import json
from functools import cache
from random import Random

import numpy as np
import pytest
from safetensors import safe_open

from reference.model.builtin.checkpoint import BUILTIN, NAMES, load
from reference.model.builtin.conversations import question
from reference.model.builtin.dialogue import END_OF_TURN, answer_in_mode
from reference.model.builtin.evaluate import Examiner
from reference.model.builtin.exchanges import all_exchanges
from reference.model.builtin.greedy import GreedyModel
from reference.model.config import ModelConfig
from reference.model.tensors import checkpoint_tensors

LARGEST = 10_000_000  # bytes


@cache
def examiner(name: str) -> Examiner:
    config = ModelConfig.from_file(BUILTIN / name / "config.json")
    return Examiner(GreedyModel(config, load(config, BUILTIN / name)), BUILTIN / name)


@pytest.mark.parametrize("name", NAMES)
def test_shape_and_size(name: str) -> None:
    config = ModelConfig.from_file(BUILTIN / name / "config.json")
    assert (config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim) == (256, 8, 2, 64)
    assert (config.num_experts, config.num_experts_per_token) == ((16, 4) if name == "moe" else (0, 0))
    assert config.num_mtp_layers == 1
    path = BUILTIN / name / "model.safetensors"
    assert path.stat().st_size <= LARGEST
    with safe_open(path, "numpy") as file:
        held = {tensor: tuple(file.get_slice(tensor).get_shape()) for tensor in file.keys()}  # noqa: SIM118
        dtypes = {file.get_slice(tensor).get_dtype() for tensor in held}
    assert held == {tensor: spec.shape for tensor, spec in checkpoint_tensors(config).items()}
    assert dtypes == {"BF16"}


# Compiling many rows of a mixture of experts at once takes a minute; one row of it is compiled below.
@pytest.mark.parametrize("name", ["dense", pytest.param("moe", marks=pytest.mark.slow)])
def test_taught_questions_are_answered_word_for_word(name: str) -> None:
    asked = [question(exchange) for exchange in Random(7).sample(all_exchanges(), 16)]
    asked = [conversation for conversation in asked if len(conversation.answer) < 60]
    right, answers, wrong = examiner(name).ask([(conversation, "plain") for conversation in asked])
    assert right >= 0.95 * len(asked), wrong
    assert all(answer.token_ids[-1] == examiner(name).end_of_turn for answer in answers)
    assert np.median([margin for answer in answers for margin in answer.margins]) > 2.0
    assert np.mean([same for answer in answers for same in answer.drafts_kept]) > 0.5


@pytest.mark.parametrize("name", NAMES)
def test_thinking_and_its_switch(name: str) -> None:
    (capital,) = [exchange for exchange in all_exchanges() if exchange.questions[0] == "What is the capital of France?"]
    for mode in ("no_think", "think"):
        right, answers, wrong = examiner(name).ask([(question(capital), mode)])
        assert right == 1, wrong
        assert examiner(name).text(answers[0]).startswith("<think>") == (mode == "think")
    assert answer_in_mode(question(capital), "plain") == f"The capital of France is Paris.{END_OF_TURN}"


@pytest.mark.parametrize("name", NAMES)
def test_a_continuation_is_no_noise(name: str) -> None:
    ((text, answer),) = examiner(name).continuations(["Once upon a time, there was a"], 24, None)
    words = text.split()
    assert len(words) > 8 and len(set(words)) > len(words) // 2, text
    assert text.isascii()
    assert np.median(answer.margins) > 0.3


@pytest.mark.parametrize("name", NAMES)
def test_the_model_card_reports_what_was_measured(name: str) -> None:
    report = json.loads((BUILTIN / name / "report.json").read_text(encoding="utf-8"))
    card = (BUILTIN / "README.md").read_text(encoding="utf-8")
    recalled = report["taught questions"]
    assert f"{recalled['right']} of {recalled['of']}" in card


@pytest.mark.parametrize("name", NAMES)
def test_transformers_loads_all_but_the_mtp_layer(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        BUILTIN / name, dtype=torch.float32, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["mismatched_keys"]
    assert all(key.startswith("mtp.") for key in info["unexpected_keys"])
    prompt = examiner(name).template.prompt([{"role": "user", "content": "What is the capital of France?"}])
    ids = examiner(name).encode(prompt)
    written = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)[0, len(ids) :]
    assert examiner(name).tokenizer.decode(written.tolist()) == "The capital of France is Paris."
