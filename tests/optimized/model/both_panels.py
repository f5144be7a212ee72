"""One model in both panels, fed batch for batch: prompts in chunks beside decoding rows, and then decode rows alone."""

from __future__ import annotations

import numpy as np

from optimized.model.machine import Machine
from optimized.model.runner import DeviceRunner
from reference.model.paged_runner import PagedRunner
from reference.serving.runner import NOT_SAMPLED, StepOutput
from tests.reference.model.batches import Fed, batch_of
from tests.reference.model.models import random_checkpoint

BLOCK_SIZE, NUM_BLOCKS, MAX_LEN, VOCAB = 16, 12, 64, 200
LIMITS = {"num_token_ids": VOCAB - 1, "max_model_len": MAX_LEN, "num_blocks": NUM_BLOCKS, "block_size": BLOCK_SIZE}
SHAPE = {"vocab_size": VOCAB, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
SHAPE |= {"head_dim": 64, "num_hidden_layers": 2}
# Of log-probabilities. bf16 keeps 8 bits of the residual stream, whose roundings the panels make at other places.
TOLERANCE = 0.15
STEPS = [[(0, 7), (1, 6)], [(1, 1), (0, 2), (2, 5)], [(0, 1), (1, 1), (2, 1)], [(2, 1), (0, 1), (1, 1)]]


def runner_on(machine: Machine, model_type: str) -> DeviceRunner:
    return DeviceRunner(*random_checkpoint(model_type, "bfloat16", **SHAPE), machine, **LIMITS)


def sequences() -> list[Fed]:
    random = np.random.default_rng(0)
    parts = ((9, [7, 2]), (6, [0, 11]), (5, [5, 9]))
    return [Fed(random.integers(1, VOCAB, length).tolist(), blocks) for length, blocks in parts]


def check_batch_for_batch(machine: Machine, model_type: str) -> None:
    """The optimized panel gives what the reference panel gives, steps included that are replayed."""
    ours = runner_on(machine, model_type)
    theirs = PagedRunner(*random_checkpoint(model_type, "bfloat16", **SHAPE), **LIMITS)
    fed = {ours: sequences(), theirs: sequences()}
    for step in STEPS:
        outputs = []
        for runner, rows in fed.items():
            asked = {"num_logprobs": np.full(len(step), 3, np.int32), "num_top": 3}
            batch = batch_of([(rows[number], count) for number, count in step], BLOCK_SIZE, **asked)
            outputs.append(runner.result(runner.submit(batch)))
        check(*outputs)
        for rows in fed.values():  # both go on with the reference's tokens
            for (number, _), token_id in zip(step, outputs[1].token_ids.tolist(), strict=True):
                if token_id != NOT_SAMPLED:
                    rows[number].token_ids.append(token_id)
    assert ours.graphs.num_replays == 2, "steps of decode rows alone are replayed"


def check(ours: StepOutput, theirs: StepOutput) -> None:
    assert ((ours.token_ids == NOT_SAMPLED) == (theirs.token_ids == NOT_SAMPLED)).all()
    for one, other in ((ours.scores, theirs.scores), (ours.prompt_scores, theirs.prompt_scores)):
        assert (one is None) == (other is None)
        if one is None or other is None:
            continue
        np.testing.assert_allclose(one.top_logprobs, other.top_logprobs, atol=TOLERANCE)
        if one is ours.prompt_scores:
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=TOLERANCE)
    for row in np.flatnonzero(ours.token_ids != theirs.token_ids):  # a tie within the tolerance
        assert theirs.scores is not None
        near = theirs.scores.top_ids[row] == ours.token_ids[row]
        assert theirs.scores.top_logprobs[row, 0] - theirs.scores.top_logprobs[row, near] < TOLERANCE


def check_tokens_in_flight(machine: Machine) -> None:
    """A batch that names tokens of the one in flight before it, in other rows, gives what it gives when they are
    known."""
    runner = runner_on(machine, "qwen3")
    results = []
    for overlaps in (False, True):
        a, b, c = sequences()
        first = runner.submit(batch_of([(b, 6), (a, 4), (c, 5)], BLOCK_SIZE))  # a samples nothing yet
        if overlaps:
            b.token_ids.append(-1)
            c.token_ids.append(-3)
        else:
            drawn = runner.result(first).token_ids
            b.token_ids.append(int(drawn[0]))
            c.token_ids.append(int(drawn[2]))
        second = runner.submit(batch_of([(c, 1), (b, 1)], BLOCK_SIZE))
        if overlaps:
            runner.result(first)
        results.append(runner.result(second).token_ids)
    np.testing.assert_array_equal(*results)
