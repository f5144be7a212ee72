"""Chat messages in the one plain form that chat templates are written for.

    content             a string: "" for null or nothing, the texts joined for a list of text parts
    role                system, user, assistant or tool; developer is the newer name of system
    tool_calls          arguments as an object where they are a JSON object in a string, as OpenAI writes them
    reasoning_content   also taken from its other name, reasoning
    answers of tools    in the order of the calls, for templates that do not write the ids
    null fields         left out

Errors: ValueError that names the message by its index and says what would be right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT_PARTS = ("text", "input_text", "output_text")


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same conversation in the plain form; what came in is left as it is."""
    if not messages:
        raise ValueError("messages is empty; a conversation has at least one")
    return _in_order_of_calls([_plain(f"messages[{index}]", message) for index, message in enumerate(messages)])


def _plain(where: str, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise ValueError(f"{where} is a {type(message).__name__}; expected an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"{where}.role is {role!r}; known are {', '.join(ROLES)}")
    plain = {key: value for key, value in message.items() if value is not None}
    plain["role"] = "system" if role == "developer" else role
    plain["content"] = _text(f"{where}.content", message.get("content"))
    if "reasoning" in plain:
        plain.setdefault("reasoning_content", plain["reasoning"])
    if "tool_calls" in plain:
        plain["tool_calls"] = _tool_calls(f"{where}.tool_calls", plain["tool_calls"])
    return plain


def _in_order_of_calls(plain: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    keys: list[tuple[int, int]] = []  # (the message, or the first answer of a row of them; which call it answers)
    calls: list[Any] = []
    for index, message in enumerate(plain):
        if message["role"] != "tool":
            calls = [call.get("id") for call in message.get("tool_calls", ())]
            keys.append((index, 0))
            continue
        first = keys[-1][0] if index and plain[index - 1]["role"] == "tool" else index
        call_id = message.get("tool_call_id")
        if call_id is not None and call_id not in calls:
            where = f"messages[{index}].tool_call_id"
            raise ValueError(f"{where} is {call_id!r}; the message before the tools' answers makes no such call")
        keys.append((first, index if call_id is None else calls.index(call_id)))
    return [plain[index] for index in sorted(range(len(plain)), key=keys.__getitem__)]


def _text(where: str, content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise ValueError(f"{where} is a {type(content).__name__}; expected a string or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            raise ValueError(f"{where}[{index}] is of type {kind!r}; this model reads parts of type 'text' alone")
        texts.append(part["text"])
    return "".join(texts)


def _tool_calls(where: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list | tuple):
        raise ValueError(f"{where} is a {type(calls).__name__}; expected a list of calls")
    return [_tool_call(f"{where}[{index}]", call) for index, call in enumerate(calls)]


def _tool_call(where: str, call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise ValueError(f"{where} is a {type(call).__name__}; expected an object with a function")
    function = call.get("function")
    if not isinstance(function, Mapping):
        return {**call, **_arguments(call)}
    return {**call, "function": {**function, **_arguments(function)}}


def _arguments(function: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments parsed, if they are a JSON object; a model's broken JSON is shown to it as it wrote it."""
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return {}
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return {"arguments": parsed} if isinstance(parsed, dict) else {}
