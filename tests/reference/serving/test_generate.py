"""One sample, from its first token to its last, over models whose every answer is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.formats import Array
from reference.serving.generate import generate
from reference.serving.log_probs import log_probs_at
from reference.serving.request import FinishReason, RequestOutput
from reference.serving.served_model import LanguageModel
from reference.serving.stop import first_stop_string
from tests.reference.serving.fakes import (
    ABC,
    DEF_TO_J,
    E_ACUTE_SPACE,
    END_OF_TURN,
    EOS,
    NUM_TOKEN_IDS,
    HistoryModel,
    ScriptedModel,
    decode,
    ids_of,
    request,
    served,
    text_of,
    tokens_of,
)


def outputs_of(
    model: LanguageModel, *, prompt: Sequence[int] = (7,), index: int = 0, context: int = 64, **params: Any
) -> list[RequestOutput]:
    return list(generate(request(prompt=prompt, **params), index, served(model, context)))


def say(script: Sequence[int], **params: Any) -> list[RequestOutput]:
    return outputs_of(ScriptedModel(script), **({"temperature": 0.0} | params))


def end_of(outputs: list[RequestOutput]) -> tuple[FinishReason | None, int | str | None]:
    return outputs[-1].finish_reason, outputs[-1].stop_reason


def test_the_script_is_said_a_token_an_output() -> None:
    script = [*ids_of("hi "), ABC, E_ACUTE_SPACE, EOS]
    outputs = say(script)
    assert [output.token_ids for output in outputs] == [(token_id,) for token_id in script]
    assert [output.text for output in outputs] == ["h", "i", " ", "ABC", "é ", ""]
    assert [output.finish_reason for output in outputs] == [None] * 5 + [FinishReason.STOP]
    assert end_of(outputs) == (FinishReason.STOP, None)


def test_a_stop_string_across_tokens_leaks_nothing() -> None:
    outputs = say([65, ABC, DEF_TO_J, 66, EOS], stop=("CDEFG", "never"))
    assert [output.text for output in outputs] == ["A", "AB", ""]
    assert tokens_of(outputs) == [65, ABC, DEF_TO_J]
    assert end_of(outputs) == (FinishReason.STOP, "CDEFG")


def test_a_stop_string_may_be_shown() -> None:
    outputs = say([65, ABC, DEF_TO_J, 66, EOS], stop=("CDEFG",), include_stop_str_in_output=True)
    assert [output.text for output in outputs] == ["A", "ABC", "DEFG"]


def test_an_emoji_over_four_tokens_comes_as_one() -> None:
    outputs = say([65, *ids_of("😀"), 66, EOS])
    assert [output.text for output in outputs] == ["A", "", "", "", "😀", "B", ""]


def test_a_literal_replacement_character_does_not_stall() -> None:
    outputs = say([*ids_of("\ufffd\ufffdok"), EOS])
    assert text_of(outputs) == "\ufffd\ufffdok"
    assert text_of(outputs[:6]) == "\ufffd" and text_of(outputs[:7]) == "\ufffd\ufffdo"


@pytest.mark.parametrize("max_tokens", [1, 5])
def test_the_budget(max_tokens: int) -> None:
    outputs = say(ids_of("abcdefgh"), max_tokens=max_tokens)
    assert text_of(outputs) == "abcdefgh"[:max_tokens]
    assert end_of(outputs) == (FinishReason.LENGTH, None)


@pytest.mark.parametrize("max_tokens", [None, 1000])
def test_the_context_is_an_end_too(max_tokens: int | None) -> None:
    outputs = outputs_of(HistoryModel(), prompt=[1] * 5, context=8, max_tokens=max_tokens, ignore_eos=True)
    assert len(outputs) == 3 and end_of(outputs) == (FinishReason.LENGTH, None)


def test_min_tokens_bans_what_would_end_the_sample() -> None:
    script = [EOS, END_OF_TURN, EOS, EOS]
    outputs = say(script, min_tokens=3, stop_token_ids=(END_OF_TURN,))
    assert len(outputs) == 4 and end_of(outputs) == (FinishReason.STOP, None)
    assert not {EOS, END_OF_TURN} & set(tokens_of(outputs)[:3])
    assert tokens_of(say(script, stop_token_ids=(END_OF_TURN,))) == [EOS]


def test_ignore_eos_goes_on_and_a_stop_id_still_ends() -> None:
    outputs = say([65, EOS, 66, END_OF_TURN, 67], ignore_eos=True, stop_token_ids=(END_OF_TURN,))
    assert tokens_of(outputs) == [65, EOS, 66, END_OF_TURN]
    assert text_of(outputs) == "AB" and end_of(outputs) == (FinishReason.STOP, END_OF_TURN)
    assert text_of(say([65, EOS, 66], ignore_eos=True, skip_special_tokens=False, max_tokens=3)) == "A<eos>B"


def test_padding_of_the_vocabulary_is_never_sampled() -> None:
    tokens = [t for i in range(8) for t in tokens_of(outputs_of(HistoryModel(), index=i, ignore_eos=True))]
    assert len(tokens) == 8 * 63 and max(tokens) < NUM_TOKEN_IDS


PARAMS = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**64 - 1),
        "temperature": st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        "top_k": st.sampled_from([0, 3]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "allowed_token_ids": st.sampled_from([None, (65, 66, 0xF0, 0x9F, ABC, END_OF_TURN, EOS, 67)]),
        "max_tokens": st.sampled_from([None, 1, 7, 15]),
        "stop": st.sampled_from([(), ("B",), ("AA", "AB"), ("CA", "ABC", "\ufffd")]),
        "stop_token_ids": st.sampled_from([(), (END_OF_TURN,), (67,)]),
        "ignore_eos": st.booleans(),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
        "logprobs": st.sampled_from([None, 0, 3]),
        "prompt_logprobs": st.sampled_from([None, 2]),
    }
)


@given(PARAMS)
@settings(deadline=None, max_examples=50)
def test_every_sample_keeps_what_its_outputs_promise(params: dict[str, Any]) -> None:
    model, prompt = HistoryModel(), (7, 8, 9)
    outputs = outputs_of(model, prompt=prompt, context=20, **params)
    tokens, text, (reason, stop_reason) = tokens_of(outputs), text_of(outputs), end_of(outputs)

    assert all(output.finish_reason is None for output in outputs[:-1])
    budget = min(params["max_tokens"] or 99, 17)
    assert 1 <= len(tokens) <= budget
    ending_ids = set(params["stop_token_ids"]) | (set() if params["ignore_eos"] else {EOS})
    assert not ending_ids & set(tokens[:-1])

    hides_last = tokens[-1] in ending_ids and not params["include_stop_str_in_output"]
    whole = decode(tokens[:-1] if hides_last else tokens, params["skip_special_tokens"])
    found = first_stop_string(whole, params["stop"])
    if isinstance(stop_reason, str):
        assert found is not None and found[1] == stop_reason
        assert text == whole[: found[0] + (len(stop_reason) if params["include_stop_str_in_output"] else 0)]
    else:
        assert found is None and text == whole
        assert reason is (FinishReason.STOP if tokens[-1] in ending_ids else FinishReason.LENGTH)
        assert reason is FinishReason.STOP or len(tokens) == budget

    for i, output in enumerate(outputs):
        logits = model.last_logits((*prompt, *tokens[:i]))
        if params["logprobs"] is None:
            assert output.logprobs is None
        else:
            assert output.logprobs == (log_probs_at(logits, tokens[i], params["logprobs"]),)
        assert (output.prompt_logprobs is not None) == (i == 0 and params["prompt_logprobs"] is not None)
    if params["prompt_logprobs"] is not None:
        first, *others = outputs[0].prompt_logprobs or ()
        assert first is None and [other.token_id for other in others if other] == [8, 9]

    assert outputs == outputs_of(HistoryModel(), prompt=prompt, context=20, **params), "and again the same"


class NanAt(ScriptedModel):
    """NaN logits once the sequence has that many tokens."""

    def __init__(self, script: Sequence[int], length: int, prompt_length: int = 1) -> None:
        super().__init__(script, prompt_length)
        self.length = length

    def last_logits(self, token_ids: Sequence[int]) -> Array:
        logits = super().last_logits(token_ids)
        return np.full_like(logits, np.nan) if len(token_ids) >= self.length else logits


def test_nan_logits_end_the_sample_with_an_explanation_and_the_text_held_back() -> None:
    outputs = outputs_of(NanAt([*ids_of("ab"), ABC], 4), temperature=0.0, stop=("CX",), logprobs=1)
    assert [output.text for output in outputs] == ["a", "b", "AB", "C"]
    last = outputs[-1]
    assert (last.finish_reason, last.token_ids, last.logprobs) == (FinishReason.ERROR, (), ())
    assert last.error is not None and "position 4" in last.error and "NaN" in last.error
    assert all(output.error is None for output in outputs[:-1])


def test_nan_in_the_prompt_is_seen_if_it_is_asked_for() -> None:
    class NanInside(HistoryModel):
        def all_logits(self, token_ids: Sequence[int]) -> list[Array]:
            rows = list(super().all_logits(token_ids))
            rows[0] = np.full_like(rows[0], np.nan)
            return rows

    (only,) = outputs_of(NanInside(), prompt=(1, 2, 3), prompt_logprobs=0)
    assert only.finish_reason is FinishReason.ERROR and only.error is not None and "position 1" in only.error
    assert outputs_of(NanInside(), prompt=(1, 2, 3), max_tokens=1)[-1].finish_reason is FinishReason.LENGTH
