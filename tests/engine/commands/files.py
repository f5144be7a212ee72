"""Requests and answers in files, and the command between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.cli import main

Answers = list[dict[str, Any]]


class Files:
    """An input and an output, and the command between them."""

    def __init__(self, directory: Path, model: list[str]) -> None:
        self.input, self.output = directory / "in.jsonl", directory / "out.jsonl"
        self._model = model

    def write(self, *lines: dict[str, Any] | bytes | str) -> None:
        """The input: objects as JSON, the rest as it is."""
        made = [json.dumps(line) if isinstance(line, dict) else line for line in lines]
        self.input.write_bytes(b"".join((one.encode() if isinstance(one, str) else one) + b"\n" for one in made))

    def command(self, *options: str) -> list[str]:
        return ["generate", *self._model, "--input", str(self.input), "--output", str(self.output), *options]

    def run(self, *options: str) -> int:
        return main(self.command(*options))

    def answers(self) -> Answers:
        return [json.loads(line) for line in self.output.read_bytes().splitlines()]

    def answer(self, *lines: dict[str, Any] | bytes | str, options: tuple[str, ...] = ()) -> Answers:
        """A run from the start."""
        self.write(*lines)
        self.run("--overwrite", *options)
        return self.answers()


def text(answer: dict[str, Any]) -> str:
    """What the model said first."""
    [choice, *_] = (answer["response"].get("body") or answer["response"])["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def without_names(body: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from one call to the next."""
    return {name: value for name, value in body.items() if name not in ("id", "created")}


def say(words: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": f"say:{words}#", "temperature": 0, "max_tokens": 100, **fields}
