"""What every body a client sends has in common.

Types are strict ("1" is no number, true is no integer), and a field that is not declared is refused. A null is as good
as absent. A parameter that OpenAI's API or vLLM has and this server does not is refused by name, unless its value asks
for nothing. The JSON schema of a model (for /openapi.json) says all that too.

Only the first thing that is wrong is told, so nothing looks for a second: pydantic would make a list of all, holding up
every other thread of the server, for a minute where 8 MiB hold nothing right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError


def _stop_at_first_error(schema: Any) -> None:
    """Of every list in a schema."""
    if isinstance(schema, list | tuple):
        for part in schema:
            _stop_at_first_error(part)
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for part in schema.values():
            _stop_at_first_error(part)


class Strict(BaseModel):
    """The base of request models. `unsupported`: parameters that are not supported, with the values that ask for
    nothing. `instead`: what does the same, for some of them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    instead: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_unserved(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        known = {field.alias or name for name, field in cls.model_fields.items()} | cls.unsupported.keys()
        given = {name: value for name, value in raw.items() if value is not None and name in known}
        for name in [name for name in given if name in cls.unsupported]:
            if not any(_same(given[name], value) for value in cls.unsupported[name]):
                hint = f"; use {cls.instead[name]}" if name in cls.instead else ""
                raise PydanticCustomError("unsupported", "is not supported{hint}", {"name": name, "hint": hint})
            del given[name]
        unknown = [name for name in raw if name not in known]
        return given | {name: raw[name] for name in unknown[:1]}  # pydantic refuses it, if nothing else is wrong

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_at_first_error(schema)
        return schema

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(core_schema)
        schema = handler.resolve_ref_schema(described)
        properties = schema.setdefault("properties", {})
        for name in properties.keys() - schema.get("required", ()):
            properties[name] = _nullable(properties[name])
        for name, values in cls.unsupported.items():
            properties[name] = {"enum": [*values, None], "description": "Not supported: values that ask for nothing."}
        return described


def _same(one: Any, other: Any) -> bool:
    """As JSON knows equality: true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _nullable(schema: JsonSchemaValue) -> JsonSchemaValue:
    alternatives = schema.get("anyOf", [])
    if {"type": "null"} in alternatives:
        return schema
    # The default and the title stay outside, where readers of descriptions look for them.
    outside = {key: value for key, value in schema.items() if key in ("default", "title", "description")}
    inside = {key: value for key, value in schema.items() if key not in outside}
    return {**outside, "anyOf": [inside, {"type": "null"}]}
