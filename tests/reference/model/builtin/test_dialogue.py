"""Conversations as text: rendered as transformers renders them, in the three modes that are taught."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.model.builtin import conversations as made
from reference.model.builtin.checkpoint import BUILTIN
from reference.model.builtin.dialogue import (
    MODES,
    Conversation,
    Template,
    answer_in_mode,
    document,
    document_without_thoughts,
)
from reference.model.builtin.exchanges import all_exchanges
from reference.model.builtin.tool_use import TOOLS, tool_conversations, with_idle_tools, without_a_tool

TEMPLATE = Template.from_directory(BUILTIN / "dense")
EXCHANGES = all_exchanges()
PARIS = Conversation((made.user("What is the capital of France?"),), "The capital of France is Paris.", "It is Paris.")


def test_the_three_modes() -> None:
    asked = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    answer = "The capital of France is Paris.<|im_end|>\n"
    assert document(TEMPLATE, PARIS, "plain") == (asked, answer)
    assert document(TEMPLATE, PARIS, "no_think") == (f"{asked}<think>\n\n</think>\n\n", answer)
    thinking = asked.replace("?<", "? /think<")
    assert document(TEMPLATE, PARIS, "think") == (thinking, f"<think>\nIt is Paris.\n</think>\n\n{answer}")
    switched_off = asked.replace("?<", "? /no_think<")
    assert document_without_thoughts(TEMPLATE, PARIS) == (switched_off, f"<think>\n\n</think>\n\n{answer}")


def test_thoughts_are_asked_for_in_the_last_turn_alone() -> None:
    messages = (made.user("Hello"), made.assistant("Hello! How can I help you?"), *PARIS.messages)
    prompt = TEMPLATE.prompt_in_mode(Conversation(messages, PARIS.answer, "It is Paris."), "think")
    assert prompt.count("/think") == 1
    assert prompt.endswith("France? /think<|im_end|>\n<|im_start|>assistant\n")


def every_kind(seed: int) -> list[Conversation]:
    random = Random(seed)
    return [
        *made.single_turns(EXCHANGES, random, 20),
        *made.many_turns(EXCHANGES, random, 5, longest=6),
        *made.one_word(EXCHANGES, random, 5),
        *made.in_json(EXCHANGES, random, 5),
        *made.follow_ups(EXCHANGES, random, 5),
        *made.memories(EXCHANGES, random, 12, between=3),
        *made.repetitions(random, 5),
        *made.personas(random, 5),
        *made.story_requests(random, 5),
        *tool_conversations(random, 12),
        *without_a_tool(random, 5),
        *with_idle_tools(made.single_turns(EXCHANGES, random, 5), random),
    ]


@settings(max_examples=20)
@given(st.integers(0, 10_000))
def test_every_document_ends_its_turn_once(seed: int) -> None:
    for conversation in every_kind(seed):
        for mode in MODES:
            prompt, answer = TEMPLATE.prompt_in_mode(conversation, mode), answer_in_mode(conversation, mode)
            assert document(TEMPLATE, conversation, mode) == (prompt, f"{answer}\n")
            assert answer.endswith("<|im_end|>") and answer.count("<|im_end|>") == 1
            assert "<|im_start|>" not in answer
            assert prompt.endswith("<think>\n\n</think>\n\n" if mode == "no_think" else "<|im_start|>assistant\n")


def test_every_exchange_renders() -> None:
    for exchange in EXCHANGES:
        question = made.question(exchange)
        assert exchange.answer and exchange.reasoning and "{" not in question.messages[0]["content"]
        for mode in MODES:
            assert exchange.answer in document(TEMPLATE, question, mode).learned


def test_transformers_renders_the_same() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(BUILTIN / "dense")
    for conversation in every_kind(0):
        for thinking in (True, False):
            expected = tokenizer.apply_chat_template(
                list(conversation.messages),
                tools=list(conversation.tools) or None,
                add_generation_prompt=True,
                enable_thinking=thinking,
                tokenize=False,
            )
            assert (
                TEMPLATE.prompt(conversation.messages, tools=conversation.tools, enable_thinking=thinking) == expected
            )


def test_tool_calls_are_json_of_an_offered_tool() -> None:
    for conversation in tool_conversations(Random(1), 200):
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in conversation.tools}
        assert 1 <= len(offered) <= 4
        if "<tool_call>" not in conversation.answer:
            continue
        for part in conversation.answer.split("<tool_call>\n")[1:]:
            call = json.loads(part.split("\n</tool_call>")[0])
            assert call["arguments"].keys() == offered[call["name"]]["properties"].keys()


def test_no_fitting_tool_is_offered_where_the_answer_declines() -> None:
    for conversation in without_a_tool(Random(2), 200):
        names = {tool["function"]["name"] for tool in conversation.tools}
        assert names <= TOOLS.keys()
        assert ("weather" in conversation.answer) <= ("get_weather" not in names)


def test_two_hundred_and_more_facts_with_several_wordings() -> None:
    assert len(EXCHANGES) > 2000
    assert sum(len(exchange.questions) > 1 for exchange in EXCHANGES) > 2000
    assert len({exchange.topic for exchange in EXCHANGES}) > 20
