"""A conversation written as the prompt its model was trained on, by the checkpoint's own Jinja template.

The template is foreign code, so it runs in Jinja's sandbox, with what transformers gives it: blocks trimmed, `break`
and `continue`, `{% generation %}`, `tojson` without HTML escapes, `raise_exception`, `strftime_now`, and the special
tokens by name. Messages are brought into one plain form first, since templates fail on the others.
Source: transformers `render_jinja_template`; the OpenAI chat format.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.checkpoint.error import CheckpointError
from engine.checkpoint.generation import read_json
from engine.messages import plain_messages

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_TOOL_USE = "tool_use"  # the name of a second template, for requests with tools
# What foreign code may raise when it meets a message it was not written for.
_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
_OWN_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt", *_SPECIAL_TOKENS})


class ChatTemplate:
    """The template of a checkpoint, compiled. `variables`: the names it may read from outside besides messages and
    tools, such as `enable_thinking`; those that it gives a value itself on one path only are among them. `reads_tools`:
    is there a place for tools? `thinks`: does it know of thoughts?"""

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str], source: Path) -> None:
        environment = _environment()
        self._texts = tuple(templates.values())
        self._compiled = {}
        variables: set[str] = set()
        for name, text in templates.items():
            try:
                self._compiled[name] = environment.from_string(text)
                variables |= jinja2.meta.find_undeclared_variables(environment.parse(text))
            except jinja2.TemplateSyntaxError as error:
                raise CheckpointError(f"{source}: the chat template, line {error.lineno}: {error.message}") from None
        self._special_tokens = special_tokens
        self.reads_tools = "tools" in variables or _TOOL_USE in templates
        self.variables = frozenset(variables - _OWN_VARIABLES - set(environment.globals))
        self.thinks = "enable_thinking" in self.variables or self.mentions("<think>")

    @classmethod
    def from_directory(cls, directory: str | Path) -> ChatTemplate | None:
        """The template in chat_template.jinja, else in tokenizer_config.json (one, or a list of named ones);
        None where there is none. Errors: CheckpointError that names the file."""
        own, config = Path(directory) / "chat_template.jinja", Path(directory) / "tokenizer_config.json"
        raw = read_json(config) if config.is_file() else {}
        source = own if own.is_file() else config
        value = own.read_text(encoding="utf-8") if own.is_file() else raw.get("chat_template")
        if value is None:
            return None
        try:
            templates = {"default": value} if isinstance(value, str) else {t["name"]: t["template"] for t in value}
        except (TypeError, KeyError):
            raise CheckpointError(f"{source}: chat_template is neither a text nor a list of named ones") from None
        if "default" not in templates:
            raise CheckpointError(f"{source}: of the chat templates {', '.join(templates)} none is named 'default'")
        special = {name: raw[name] for name in _SPECIAL_TOKENS if raw.get(name) is not None}
        contents = {name: value["content"] if isinstance(value, dict) else value for name, value in special.items()}
        return cls(templates, contents, source)

    def mentions(self, text: str) -> bool:
        """Does a text occur anywhere in the template?"""
        return any(text in template for template in self._texts)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt of a conversation. tools: JSON schemas, as OpenAI's. kwargs: the template's own variables.

        Errors: ValueError, to be read by whoever wrote the conversation: a message in no known form, a variable that
        the template does not read, or what the template itself refuses.
        """
        unread = sorted(kwargs.keys() - self.variables - {"documents"})
        if unread:
            known = ", ".join(sorted(self.variables)) or "none"
            raise ValueError(f"the chat template does not read {', '.join(unread)}; its own variables are: {known}")
        name = _TOOL_USE if tools and _TOOL_USE in self._compiled else "default"
        context = {"documents": None, **self._special_tokens, **kwargs}
        plain = plain_messages(messages)
        try:
            return self._compiled[name].render(
                messages=plain,
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
                **context,
            )
        except _TEMPLATE_FAILURES as error:
            raise ValueError(f"the chat template refuses this conversation: {error}") from None


class _GenerationBlock(Extension):
    """`{% generation %} ... {% endgeneration %}` marks for training what the assistant said; here it is plain text."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.datetime.now().strftime(format_)
