"""The tools that a chat offers to its model, as a client describes them, and what it says of their use."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidatorFunctionWrapHandler, field_validator, model_validator
from pydantic_core import PydanticCustomError

from engine.api.strict import Strict

MAX_TOOLS = 128
Name = Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")]


class ToolFunction(Strict):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None  # a JSON schema of an object; none: any object
    strict: bool | None = None  # a forced call follows its schema to the letter in any case


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


class ToolCall(Strict):
    """A call that an earlier answer made, sent back as it came."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None  # as streams number calls


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

    tool_choice: Literal["none", "auto", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True  # if not: what comes after the first call is dropped

    @model_validator(mode="after")
    def _of_known_tools(self) -> ToolUse:
        names = [tool["function"]["name"] for tool in self.tools_as_given]
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            known = ", ".join(names) or "none"
            message = f"is {self.tool_choice.function.name!r}; the tools are: {known}"
            raise PydanticCustomError("parameter", "{message}", {"name": "tool_choice", "message": message})
        if self.tool_choice == "required" and not names:
            raise PydanticCustomError("parameter", "needs tools to choose from", {"name": "tool_choice"})
        return self

    @property
    def tools_as_given(self) -> list[dict[str, Any]]:
        return super().offered

    @property
    def offered(self) -> list[dict[str, Any]]:
        return [] if self.tool_choice == "none" else self.tools_as_given
