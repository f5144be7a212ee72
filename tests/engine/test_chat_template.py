"""Prompts are those that transformers makes of the same template, and what goes wrong is said in words."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from engine.chat_template import ChatTemplate
from engine.checkpoint import CheckpointError
from engine.checkpoint.resolve import BUILTIN_DIRECTORY
from tests.engine.artefacts import qwen3_tokenizer_directory

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'What the weather is <today> & "tomorrow", in °C',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": [{"role": "user", "content": "Hi <&> 'you'"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    "two turns": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"},
        {"role": "user", "content": "Again\n"},
    ],
    "reasoning": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "reasoning_content": "hm"},
    ],
    "tools": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": "sunny"},
        {"role": "tool", "content": "rain"},
    ],
}


@pytest.fixture(scope="module", params=["dense", pytest.param("qwen3", marks=pytest.mark.network)])
def directory(request: pytest.FixtureRequest) -> Path:
    assert request.config.cache is not None
    return BUILTIN_DIRECTORY / "dense" if request.param == "dense" else qwen3_tokenizer_directory(request.config.cache)


@pytest.fixture(scope="module")
def template(directory: Path) -> ChatTemplate:
    found = ChatTemplate.from_directory(directory)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def text(directory: Path) -> str:
    own = directory / "chat_template.jinja"
    if own.is_file():
        return own.read_text()
    return json.loads((directory / "tokenizer_config.json").read_text())["chat_template"]


def by_transformers(text: str, messages: list[dict[str, Any]], **options: Any) -> str:
    rendered: Any = render_jinja_template([messages], chat_template=text, **options)
    return rendered[0][0]


@pytest.mark.parametrize("thinking", [True, False, None])
@pytest.mark.parametrize("tools", [None, [WEATHER], [WEATHER, WEATHER]], ids=["no tools", "one tool", "two tools"])
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_prompts_are_those_of_transformers(
    template: ChatTemplate, text: str, name: str, tools: Any, thinking: bool | None
) -> None:
    options = {"tools": tools} if thinking is None else {"tools": tools, "enable_thinking": thinking}
    messages = CONVERSATIONS[name]
    for prompt in (True, False):
        expected = by_transformers(text, messages, add_generation_prompt=prompt, **options)
        assert template.render(messages, add_generation_prompt=prompt, **options) == expected


turns = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": st.text()}),
    min_size=1,
    max_size=5,
)


@settings(deadline=None)
@given(messages=turns)
def test_any_conversation_is_that_of_transformers(
    template: ChatTemplate, text: str, messages: list[dict[str, Any]]
) -> None:
    assert template.render(messages) == by_transformers(text, messages, add_generation_prompt=True)


def test_null_and_parts_and_arguments_in_a_string_make_the_same_prompt(template: ChatTemplate) -> None:
    call = CALL | {"function": {"name": "weather", "arguments": json.dumps(CALL["function"]["arguments"])}}  # type: ignore[index]
    parts = [{"type": "text", "text": "Weath"}, {"type": "text", "text": "er?"}]
    sent: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call, CALL], "refusal": None},
        *CONVERSATIONS["tools"][3:],
    ]
    assert template.render(sent, tools=[WEATHER]) == template.render(CONVERSATIONS["tools"], tools=[WEATHER])


def test_a_variable_that_the_template_does_not_read_is_refused(template: ChatTemplate) -> None:
    assert "enable_thinking" in template.variables and not {"messages", "tools", "namespace"} & template.variables
    with pytest.raises(ValueError, match=r"does not read enable_thinkin; its own variables are: .*enable_thinking"):
        template.render(CONVERSATIONS["one turn"], enable_thinkin=False)


def test_a_variable_that_the_template_gives_a_default_is_still_read(tmp_path: Path) -> None:
    text = "{% if not (mode is defined) %}{% set mode = 'own' %}{% endif %}{{ mode }}"
    assert (make(tmp_path, text).render(USER), make(tmp_path, text).render(USER, mode="given")) == ("own", "given")


def make(directory: Path, text: Any, **config: Any) -> ChatTemplate:
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": text, **config}))
    found = ChatTemplate.from_directory(directory)
    assert found is not None
    return found


USER = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("text", "thinks", "reads_tools"),
    [
        ("{{ messages }}", False, False),
        ("{% if enable_thinking %}{% endif %}{{ tools }}", True, True),
        ("{{ '<think>' }}{% for m in messages %}{{ m.tools }}{% endfor %}", True, False),
        ([{"name": "default", "template": ""}, {"name": "tool_use", "template": "<think>"}], True, True),
    ],
)
def test_what_a_template_knows(tmp_path: Path, text: Any, thinks: bool, reads_tools: bool) -> None:
    template = make(tmp_path, text)
    assert (template.thinks, template.reads_tools) == (thinks, reads_tools)


def test_the_file_goes_before_the_config(tmp_path: Path) -> None:
    assert ChatTemplate.from_directory(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert ChatTemplate.from_directory(tmp_path) is None
    assert make(tmp_path, "config").render(USER) == "config"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert make(tmp_path, "config").render(USER) == "file"


def test_a_list_of_templates_has_one_for_tools(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools[0].type }}"}]
    template = make(tmp_path, templates)
    assert template.render(USER) == template.render(USER, tools=[]) == "plain"
    assert template.render(USER, tools=[WEATHER]) == "function"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{% if %}", "tokenizer_config.json: the chat template, line 1: Expected an expression"),
        ("\n{{ x }", "line 2"),
        ([{"name": "other", "template": ""}], "of the chat templates other none is named 'default'"),
        ([{"template": ""}], "neither a text nor a list of named ones"),
        (3, "neither a text nor a list of named ones"),
    ],
)
def test_a_template_that_is_none_is_refused_by_its_file(tmp_path: Path, text: Any, message: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        make(tmp_path, text)
    assert "tokenizer_config.json" in str(raised.value) and message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses this conversation: roles must alternate"),
        ("{{ messages[0].content + 3 }}", "can only concatenate str"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ 1 // 0 }}", "by zero"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "'append' of 'list' object is unsafe"),
        ("{% for i in range(1000000000) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ namespace | tojson }}", "not JSON serializable"),
        ("{{ 'abc'.index('z') }}", "substring not found"),
    ],
)
def test_what_fails_in_a_template_is_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match="the chat template refuses this conversation") as raised:
        make(tmp_path, text).render(USER)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{% for m in messages %}\n    {{ m.role }}\n{% endfor %}\n", "    user\n"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c", "abxc"),
        ("{{ {'b': 'é<>&', 'a': 1} | tojson }}", '{"b": "é<>&", "a": 1}'),
        ("{{ {'b': 2, 'a': 1} | tojson(indent=1, sort_keys=True) }}", '{\n "a": 1,\n "b": 2\n}'),
        ("{{ strftime_now('%Y') }}", str(datetime.datetime.now().year)),
        ("{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}", "<s></s>False"),
        ("{{ tools is none }}{{ documents is none }}{{ '<b>' }}", "TrueTrue<b>"),
    ],
)
def test_templates_get_what_transformers_gives_them(tmp_path: Path, text: str, expected: str) -> None:
    template = make(tmp_path, text, bos_token="<s>", eos_token={"content": "</s>"}, pad_token=None)
    assert template.render(USER) == expected
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    assert by_transformers(text, USER, add_generation_prompt=True, **special) == expected
