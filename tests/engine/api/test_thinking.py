"""Where a thought may stand, for each way in which a template ends a prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.api.served import ServedModel
from engine.api.thinking import after_thought, opening_of
from engine.chat_template import ChatTemplate
from reference.model import builtin
from tests.engine.fakes import served_model
from tests.engine.grammar.walking import allowed_ids

USER = [{"role": "user", "content": "Is <think> a tag? </think>"}]
SWITCHED = "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"


@pytest.fixture(scope="module")
def built_in() -> ServedModel:
    return served_model(Path(builtin.__file__).parent / "dense")


def first_ids(served: ServedModel, prompt: str) -> set[str]:
    """What an answer of one choice may begin with."""
    choice = served.grammars.choice(["Z"])
    allowed = allowed_ids(after_thought(served, opening_of(served, served.tokenizer.encode(prompt)), choice).begin())
    return {served.tokenizer.token_text(token_id) for token_id in allowed} if len(allowed) < 10 else {"anything"}


@pytest.mark.parametrize(
    ("enable_thinking", "expected"), [(None, {"Z", "<think>"}), (True, {"Z", "<think>"}), (False, {"Z"})]
)
def test_the_switch_of_the_template(built_in: ServedModel, enable_thinking: bool | None, expected: set[str]) -> None:
    variables = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    assert built_in.template is not None
    assert first_ids(built_in, built_in.template.render(USER, **variables)) == expected


@pytest.mark.parametrize(
    ("template", "prompt", "expected"),
    [
        (SWITCHED, "assistant\n<think>\n", {"anything"}),  # the prompt has begun the thought
        ("", "assistant\n<think>\n", {"anything"}),
        ("", "assistant\n", {"Z"}),  # the model does not think
        (SWITCHED, "", {"Z", "<think>"}),
        ("<think>", "assistant\n", {"Z", "<think>"}),  # it begins the thought itself
        ("<think>", "assistant\n<think>\n\n</think>\n\n", {"Z"}),
    ],
)
def test_other_templates(built_in: ServedModel, template: str, prompt: str, expected: set[str]) -> None:
    templated = ChatTemplate({"default": template}, {}, Path("here"))
    served = ServedModel(
        built_in.name, built_in.engine, built_in.tokenizer, templated, built_in.defaults, built_in.grammars
    )
    assert first_ids(served, prompt) == expected


def test_a_tokenizer_without_the_tags(served: ServedModel) -> None:
    assert first_ids(served, "<think>") == {"Z"}
