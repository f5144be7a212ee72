"""The specification as a core: many requests, each as if alone; and over a real model in JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from reference.formats import Array
from reference.model.config import ModelConfig
from reference.model.runner import JaxRunner
from reference.model.tensors import checkpoint_tensors
from reference.serving.request import FinishReason, RequestError, RequestOutput
from reference.serving.specification import Specification, build_core
from tests.reference.serving.fakes import (
    EOS,
    HistoryModel,
    decode,
    request,
    run,
    specification,
    text_of,
    tokens_of,
)

REQUESTS = [
    request("seeded", (1, 2, 3), seed=42, max_tokens=12, n=3, logprobs=2),
    request("greedy", (9,), temperature=0.0, max_tokens=9, repetition_penalty=1.2),
    request("stopping", (4, 4), seed=7, stop=("a", "e", "i"), top_k=40),
    request("filling the context", (5,) * 20, seed=8, ignore_eos=True),
    request("prompt", (6, 7, 8), seed=9, prompt_logprobs=1, max_tokens=3),
]


def test_each_request_is_as_if_alone() -> None:
    together = run(specification(HistoryModel()), *REQUESTS)
    alone: dict[tuple[str, int], list[RequestOutput]] = {}
    for each in REQUESTS:
        alone |= run(specification(HistoryModel()), each)
    assert together == alone
    assert len(together) == 7


def test_n_samples_are_distinct_and_reproducible() -> None:
    ask = request("r", (1, 2), seed=3, n=8, max_tokens=10, ignore_eos=True)
    first = run(specification(HistoryModel()), ask)
    streams = [tuple(tokens_of(first["r", index])) for index in range(8)]
    assert len(set(streams)) == 8
    assert first == run(specification(HistoryModel()), ask)


def test_sample_0_of_many_is_the_only_sample_of_one() -> None:
    many, one = (run(specification(HistoryModel()), request("r", seed=3, n=n, max_tokens=10))["r", 0] for n in (4, 1))
    assert many == one


def test_another_seed_is_another_stream() -> None:
    answers = run(
        specification(HistoryModel()),
        *(request(str(seed), seed=seed, max_tokens=10, ignore_eos=True) for seed in (0, 1, 1 << 32, 1 << 63)),
    )
    assert len({tuple(tokens_of(outputs)) for outputs in answers.values()}) == 4


def test_samples_take_turns() -> None:
    core = specification(HistoryModel())
    core.add(request("a", n=2, max_tokens=2, ignore_eos=True))
    core.add(request("b", max_tokens=3, ignore_eos=True))
    turns = []
    while core.has_work():
        (output,) = core.step()
        turns.append((output.request_id, output.index))
    assert turns == [("a", 0), ("a", 1), ("b", 0)] * 2 + [("b", 0)]


def test_a_lower_priority_runs_first() -> None:
    core = specification(HistoryModel())
    core.add(request("later", max_tokens=2, ignore_eos=True, priority=1))
    core.add(request("first", max_tokens=2, ignore_eos=True, priority=-1, n=2))
    turns = [core.step()[0].request_id for _ in range(6)]
    assert turns == ["first"] * 4 + ["later"] * 2


def test_no_work_is_no_output() -> None:
    core = specification(HistoryModel())
    assert not core.has_work() and core.step() == []


def test_abort_drops_all_samples_and_harms_no_other() -> None:
    core = specification(HistoryModel())
    undisturbed = run(specification(HistoryModel()), REQUESTS[1])["greedy", 0]
    core.add(REQUESTS[0])
    core.add(REQUESTS[1])
    outputs = [output for _ in range(5) for output in core.step()]
    core.abort("seeded")
    while core.has_work():
        late = core.step()
        assert all(output.request_id == "greedy" for output in late)
        outputs += late
    assert [output for output in outputs if output.request_id == "greedy"] == undisturbed
    core.abort("seeded")
    core.abort("never heard of")


def test_a_thousand_aborts_leave_nothing() -> None:
    core = specification(HistoryModel())
    for i in range(1000):
        core.add(request(str(i), n=2))
        if i % 4 == 0:
            core.step()
        core.abort(str(i))
        assert not core.has_work()


def test_a_request_id_in_use_is_refused_and_free_again_at_the_end() -> None:
    core = specification(HistoryModel())
    core.add(request("r", max_tokens=1))
    with pytest.raises(RequestError, match="still running") as error:
        core.add(request("r", max_tokens=1))
    assert error.value.param == "request_id"
    assert len(run(core)["r", 0]) == 1
    assert len(run(core, request("r", max_tokens=1))["r", 0]) == 1


def test_a_refused_request_harms_no_other() -> None:
    core = specification(HistoryModel())
    core.add(REQUESTS[1])
    for wrong in (request("w", ()), request("w", (1,) * 64), request("w", (-3,)), request("w", logit_bias={999: 1.0})):
        with pytest.raises(RequestError):
            core.add(wrong)
    assert run(core) == run(specification(HistoryModel()), REQUESTS[1])


class NanFor(HistoryModel):
    """NaN for sequences that begin with a token of 13."""

    def last_logits(self, token_ids: Sequence[int]) -> Array:
        logits = super().last_logits(token_ids)
        return np.full_like(logits, np.nan) if token_ids[0] == 13 else logits


def test_nan_logits_harm_no_other() -> None:
    answers = run(specification(NanFor()), request("bad", (13, 1), n=2), *REQUESTS)
    for index in (0, 1):
        (only,) = answers.pop(("bad", index))
        assert only.finish_reason is FinishReason.ERROR and only.error
    assert answers == run(specification(HistoryModel()), *REQUESTS)


def test_a_model_that_fails_takes_one_sample_with_it() -> None:
    class Failing(HistoryModel):
        def last_logits(self, token_ids: Sequence[int]) -> Array:
            if token_ids[0] == 13:
                raise MemoryError
            return super().last_logits(token_ids)

    core = specification(Failing())
    core.add(request("bad", (13,)))
    core.add(REQUESTS[1])
    with pytest.raises(MemoryError):
        core.step()
    assert run(core) == run(specification(HistoryModel()), REQUESTS[1])


# Over a real model

CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "dtype": "float32",
}


def test_build_core_serves_a_model_in_jax() -> None:
    config = ModelConfig.from_dict(CONFIG)
    rng = np.random.default_rng(0)
    tensors = {
        name: (rng.standard_normal(spec.shape) * 0.3).astype(np.float32)
        for name, spec in checkpoint_tensors(config).items()
    }
    core = build_core(config, tensors, decode, eos_token_ids=[EOS], num_token_ids=261, max_model_len=16)
    assert isinstance(core, Specification) and core.max_model_len == 16
    outputs = run(core, request("r", (1, 2, 3), temperature=0.0, max_tokens=8, logprobs=1, prompt_logprobs=1))["r", 0]

    runner = core._served.model  # what it compiled is not compiled again
    assert isinstance(runner, JaxRunner)
    sequence = [1, 2, 3]
    for output in outputs:
        logits = runner.last_logits(sequence)[:261]
        assert output.token_ids == (int(np.argmax(logits)),)
        sequence += output.token_ids
    assert len(outputs) == 8 or sequence[-1] == EOS
    assert text_of(outputs) == decode([token_id for token_id in sequence[3:] if token_id != EOS])
    for index, answer in enumerate(outputs[0].prompt_logprobs or ()):
        if index:
            logits = list(runner.all_logits(sequence[:3]))[index - 1].astype(float)
            expected = logits - np.log(np.exp(logits).sum())
            assert answer is not None and answer.logprob == pytest.approx(expected[sequence[index]], abs=1e-4)
