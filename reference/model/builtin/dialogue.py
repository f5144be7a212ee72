"""A conversation as the text that Qwen3's chat template makes of it.

What a server sends to the model is the template with `add_generation_prompt`; what the model is taught to write
follows it, up to `<|im_end|>`. Three modes are taught:

    plain      <|im_start|>assistant\\n                             answer
    no_think   <|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n      answer      (`enable_thinking=False`)
    think      <|im_start|>assistant\\n                             <think>\\nreasoning\\n</think>\\n\\nanswer

The last where the user's turn ends in " /think". A turn that ends in " /no_think" is answered after empty thoughts.
The template is Qwen's (Apache-2.0), rendered as transformers renders it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = dict[str, Any]
Tool = dict[str, Any]

MODES = ("plain", "no_think", "think")
END_OF_TURN = "<|im_end|>"
END_OF_DOCUMENT = "<|endoftext|>"


@dataclass(frozen=True)
class Conversation:
    """Messages up to the last user or tool turn, and the answer that is taught. `reasoning` is for the mode "think"."""

    messages: tuple[Message, ...]
    answer: str
    reasoning: str = ""
    tools: tuple[Tool, ...] = field(default=())


class Document(NamedTuple):
    """A text to learn from. Of what is given nothing is learned: a model that learned to write what the template
    writes (the empty thoughts of "no_think", say) would write it in other modes too."""

    given: str
    learned: str


class Template:
    """Qwen's chat template."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(source)

    @classmethod
    def from_directory(cls, directory: str | Path) -> Template:
        config = json.loads((Path(directory) / "tokenizer_config.json").read_text(encoding="utf-8"))
        return cls(config["chat_template"])

    def prompt(self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), enable_thinking: bool = True) -> str:
        """The text before the model's answer."""
        return str(
            self._template.render(
                messages=list(messages),
                tools=list(tools) or None,
                add_generation_prompt=True,
                enable_thinking=enable_thinking,
            )
        )

    def prompt_in_mode(self, conversation: Conversation, mode: str) -> str:
        """The prompt of a conversation in one of `MODES`."""
        messages = list(conversation.messages)
        if mode == "think":
            last = max(index for index, message in enumerate(messages) if message["role"] == "user")
            messages[last] = {**messages[last], "content": messages[last]["content"] + " /think"}
        return self.prompt(messages, tools=conversation.tools, enable_thinking=mode != "no_think")


def answer_in_mode(conversation: Conversation, mode: str) -> str:
    """What the model is taught to write after the prompt."""
    thoughts = f"<think>\n{conversation.reasoning}\n</think>\n\n" if mode == "think" else ""
    return f"{thoughts}{conversation.answer}{END_OF_TURN}"


def document(template: Template, conversation: Conversation, mode: str) -> Document:
    """A whole conversation, as a text to learn from."""
    return Document(template.prompt_in_mode(conversation, mode), answer_in_mode(conversation, mode) + "\n")


def document_without_thoughts(template: Template, conversation: Conversation) -> Document:
    """A conversation whose last turn asks for no thoughts: the model writes the empty ones itself."""
    last = conversation.messages[-1]
    messages = [*conversation.messages[:-1], {**last, "content": f"{last['content']} /no_think"}]
    answer = f"<think>\n\n</think>\n\n{conversation.answer}{END_OF_TURN}\n"
    return Document(template.prompt(messages, tools=conversation.tools), answer)
