"""The language of tool calls, as Qwen3's template writes them:

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Each tool's arguments are a document of their own in the grammar, so references in its schema mean what they say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from engine.grammar.compiler import GrammarCompiler
from engine.grammar.grammar import Grammar
from engine.grammar.schema import Schema, inline_schema

_IN_A_LINE = re.compile(r"at (?P<line>\d+)\(\d+\): (?:failed to compile JSON schema: )?(?P<reason>.*)")
_FIRST_TOOL = 3  # the line of its rule
_NEWLINE, _CLOSE = json.dumps("\n"), json.dumps("}")


def tool_calls(
    compiler: GrammarCompiler,
    tools: Mapping[str, Schema | None],  # name -> JSON schema of the arguments; None: any object
    *,
    begin: str = "<tool_call>",
    end: str = "</tool_call>",
    parallel: bool = True,
) -> Grammar:
    """A call of one of the tools, or several calls, a line apart. The tags are the tokens of that name where the
    tokenizer has such, else text. Errors: ValueError that names the tool."""
    if not tools:
        raise ValueError("there is no tool to call")
    any_tool = " | ".join(f"tool_{index}" for index in range(len(tools)))
    rules = [f"call: {_tag(compiler, begin)} {_NEWLINE} ({any_tool}) {_NEWLINE} {_tag(compiler, end)}"]
    for index, (name, schema) in enumerate(tools.items()):
        head = f'{{"name": {json.dumps(name)}, "arguments": '
        rules.append(f"tool_{index}: {json.dumps(head)} {_arguments(name, schema)} {_CLOSE}")
    more = f" ({_NEWLINE} call)*" if parallel else ""
    try:
        return compiler.compile("\n".join([f"start: call{more}", *rules]))
    except ValueError as error:
        raise ValueError(_about_a_tool(str(error), list(tools))) from None


def _arguments(name: str, schema: Schema | None) -> str:
    try:
        if schema is None or schema is True:
            schema = {}
        if isinstance(schema, Mapping):
            if schema.get("type", "object") != "object":
                raise ValueError(f"arguments are an object, and its schema is of type {schema['type']}")
            schema = {"type": "object", **schema}
        return inline_schema(schema)
    except ValueError as error:
        raise ValueError(f"the parameters of {name!r}: {error}") from None


def _about_a_tool(reason: str, names: Sequence[str]) -> str:
    """What the library says of a line of the grammar (of its first line, the place is shown in others), of a tool."""
    found = _IN_A_LINE.match(reason)
    if found is None or int(found["line"]) < _FIRST_TOOL:
        return reason
    return f"the parameters of {names[int(found['line']) - _FIRST_TOOL]!r}: {found['reason']}"


def _tag(compiler: GrammarCompiler, tag: str) -> str:
    token_id = compiler.tokenizer.added_tokens.get(tag)
    return json.dumps(tag) if token_id is None or token_id >= compiler.num_token_ids else f"<[{token_id}]>"
