"""In which language an answer must be: OpenAI's `response_format`, vLLM's `structured_outputs` and older `guided_*`.

A JSON schema is always followed to the letter, so `strict` asks for nothing more; `name` and `description` are labels.
What is not supported of a schema is a 400 that names it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError, from_json

from engine.api.strict import Strict
from engine.grammar import GrammarCompiler
from reference.serving.request import Constraint, RequestError

Choices = list[str]
JsonSource = dict[str, Any] | bool | str  # a schema, or its text


class JsonSchema(Strict):
    schema_: dict[str, Any] = Field(alias="schema")
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _with_its_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            message = "is missing" if self.json_schema is None else f"has no meaning for type {self.type!r}"
            raise PydanticCustomError("parameter", message, {"name": "json_schema"})
        return self


class StructuredOutputs(Strict):
    unsupported: ClassVar = {
        "disable_additional_properties": (False,),
        "disable_any_whitespace": (False,),
        "disable_fallback": (False,),
        "structural_tag": (),
        "whitespace_pattern": (),
    }

    json_: JsonSource | None = Field(None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None

    @model_validator(mode="after")
    def _one_language(self) -> StructuredOutputs:
        if len(self.asked()) != 1:
            raise ValueError("expected one of json, regex, choice, grammar and json_object")
        return self

    def asked(self) -> dict[str, Any]:
        """The languages that are asked for: name -> source."""
        sources = {"json": self.json_, "regex": self.regex, "choice": self.choice, "grammar": self.grammar}
        given = {name: source for name, source in sources.items() if source is not None}
        return given | ({"json_object": True} if self.json_object else {})


class AnswerFormat(Strict):
    """The parameters, of which one may ask for a language."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSource | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None

    @model_validator(mode="after")
    def _one_format(self) -> AnswerFormat:
        if len(asked := list(self.asked())) > 1:
            message = f"and {asked[0]} both say what the answer must be; give one"
            raise PydanticCustomError("parameter", message, {"name": asked[1]})
        return self

    def asked(self) -> dict[str, tuple[str, Any]]:
        """Parameter -> the language that it asks for, and its source."""
        asked: dict[str, tuple[str, Any]] = {}
        if self.response_format is not None and self.response_format.type != "text":
            schema = self.response_format.json_schema
            asked["response_format"] = ("json_object", True) if schema is None else ("json", schema.schema_)
        if self.structured_outputs is not None:
            asked["structured_outputs"] = next(iter(self.structured_outputs.asked().items()))
        guided = {name: getattr(self, f"guided_{name}") for name in ("json", "regex", "choice", "grammar")}
        return asked | {f"guided_{name}": (name, source) for name, source in guided.items() if source is not None}


def constraint_of(compiler: GrammarCompiler, body: AnswerFormat) -> Constraint | None:
    """What an answer is held to; None if it is free. Takes as long as compiling a grammar does.

    Errors: RequestError that names the parameter and says what is wrong with its source.
    """
    for param, (language, source) in body.asked().items():
        try:
            return _compiled(compiler, language, source)
        except ValueError as error:
            raise RequestError(param, f"{param}: {error}") from None
    return None


def _compiled(compiler: GrammarCompiler, language: str, source: Any) -> Constraint:
    match language:
        case "json_object":
            return compiler.json_object()
        case "json":
            return compiler.json_schema(from_json(source, allow_inf_nan=False) if isinstance(source, str) else source)
        case "regex":
            return compiler.regex(source)
        case "choice":
            return compiler.choice(source)
        case _:
            return compiler.grammar(source)
