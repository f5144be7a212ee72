"""The tools that a chat offers to its model, as a client describes them, and what it says of their use."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, field_validator, model_validator
from pydantic_core import PydanticCustomError

from engine.api.strict import Strict

MAX_TOOLS = 128
MODES = ("none", "auto", "required")
Name = Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")]


class ToolFunction(Strict):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema of an object; none: any object
    strict: bool | None = None  # arguments follow the schema to the letter, as those of a forced call do in any case


class Tool(Strict):
    type: Literal["function"]
    function: ToolFunction


class NamedFunction(Strict):
    name: str


class NamedTool(Strict):
    """The one tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class CalledFunction(Strict):
    name: str
    arguments: str  # JSON, as the model wrote it
    parsed_arguments: Any = Field(None, exclude=True)  # what the openai package made of them


class ToolCall(Strict):
    """A call that an earlier answer made, sent back as it came."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(None, exclude=True)  # as streams number calls


class Tools(Strict):
    """What of a conversation is about tools. They are shown to the model just as they were given."""

    tools: list[Tool] = Field(default_factory=list, max_length=MAX_TOOLS)

    @field_validator("tools", mode="wrap")
    @classmethod
    def _as_given(cls, raw: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        checked: list[Tool] = handler(raw)
        names = [tool.function.name for tool in checked]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two tools are named {twice[0]!r}; names must differ")
        return raw

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools as they were given."""
        return self.tools  # type: ignore[return-value]


class ToolUse(Tools):
    """What an answer may do with the tools. `none`: they are not shown to the model."""

    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True  # if not, the answer ends with its first call

    @field_validator("tool_choice", mode="before")
    @classmethod
    def _a_choice(cls, choice: Any) -> Any:
        try:
            return choice if isinstance(choice, str) and choice in MODES else NamedTool.model_validate(choice)
        except ValidationError:
            named = '{"type": "function", "function": {"name": ...}}'
            raise ValueError(f"expected {', '.join(map(repr, MODES))} or {named}") from None

    @model_validator(mode="after")
    def _of_known_tools(self) -> ToolUse:
        names = [tool["function"]["name"] for tool in self.tools_as_given]
        if self.tool_choice not in (None, "none") and not names:
            raise PydanticCustomError("parameter", "needs tools to choose from", {"name": "tool_choice"})
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            known = ", ".join(names)
            message = f"is {self.tool_choice.function.name!r}; the tools are: {known}"
            raise PydanticCustomError("parameter", "{message}", {"name": "tool_choice", "message": message})
        return self

    @property
    def must_call(self) -> bool:
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def holds_to_schemas(self) -> bool:
        """Is any tool strict? Then calls of the others are well formed too, with arguments of any kind."""
        return any(tool["function"].get("strict") for tool in self.offered)

    @property
    def tools_as_given(self) -> list[dict[str, Any]]:
        return super().offered

    @property
    def offered(self) -> list[dict[str, Any]]:
        return [] if self.tool_choice == "none" else self.tools_as_given
