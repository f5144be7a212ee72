"""Two hundred requests at once, of every kind, with bad ones and clients that leave among them: none is lost, none
suffers for another, and no block is left behind."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.api.app import create_app
from engine.api.served import ServedModel
from engine.core.engine import Engine
from engine.core.settings import EngineSettings
from engine.detokenize import detokenizers
from reference.model.history_runner import HistoryModel, HistoryRunner
from tests.engine.fakes import served_by
from tests.engine.serving import serving

REQUESTS = 200
MAX_MODEL_LEN = 128


@pytest.fixture
def engine_and_model(text_side: Path) -> tuple[Engine, ServedModel]:
    """The engine with little KV memory, so that it preempts, over an instantaneous model."""

    def make(tokenizer, eos_token_ids):  # type: ignore[no-untyped-def]
        model = HistoryModel(tokenizer.num_token_ids + 3)
        runner = HistoryRunner(model, num_token_ids=tokenizer.num_token_ids, num_blocks=60, block_size=8)
        return Engine(
            runner,
            detokenizers(tokenizer),
            eos_token_ids=eos_token_ids,
            num_token_ids=tokenizer.num_token_ids,
            max_model_len=MAX_MODEL_LEN,
            settings=EngineSettings(max_num_seqs=16, max_num_batched_tokens=64),
        )

    served = served_by(text_side, make)
    assert isinstance(served.engine.core, Engine)
    return served.engine.core, served


@dataclass(frozen=True)
class Call:
    """kind: whole, stream, leave (after two events), or the parameter that a 400 must name."""

    kind: str
    path: str
    body: dict[str, Any]


def calls(chance: random.Random) -> list[Call]:
    made = []
    for number in range(REQUESTS):
        text = "x" * chance.randint(1, 40) if number % 3 else "a shared beginning of some length, then " + str(number)
        chat = chance.random() < 0.5
        prompt = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        body = prompt | {
            "max_tokens": chance.randint(1, 30),
            "temperature": chance.choice([0.0, 1.0]),
            "seed": number // 2,  # so every other call asks for the same as the one before
            "n": chance.choice([1, 1, 1, 2]),
            "priority": chance.choice([0, 0, -1, 3]),
            "ignore_eos": chance.random() < 0.5,
        }
        bad = {"temperature": -1, "max_tokens": 0, "top_p": 2, "nonsense": 1, "prompt": [], "stop": ""}
        kind = chance.choice(["whole", "whole", "stream", "stream", "leave", *bad])
        if kind == "prompt":
            chat, body = False, body | {"prompt": []}
            body.pop("messages", None)
        elif kind in bad:
            body[kind] = bad[kind]
        path = "/v1/chat/completions" if chat else "/v1/completions"
        made.append(Call(kind, path, body | ({"stream": True} if kind in ("stream", "leave") else {})))
    return made


def text_of(choice: dict[str, Any]) -> str:
    part = choice.get("message") or choice.get("delta")
    return choice.get("text", "") if part is None else part.get("content") or ""


async def make(client: httpx.AsyncClient, call: Call) -> list[str] | None:
    """The texts of the answer's choices; None if there is none. Errors: AssertionError."""
    if call.kind not in ("whole", "stream", "leave"):
        response = await client.post(call.path, json=call.body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, call.kind), response.text
        return None
    if call.kind == "whole":
        response = await client.post(call.path, json=call.body)
        assert response.status_code == 200, response.text
        choices = response.json()["choices"]
        assert len(choices) == call.body["n"]
        assert all(choice["finish_reason"] in ("stop", "length") for choice in choices)
        return [text_of(choice) for choice in choices]
    texts = [""] * call.body["n"]
    ended = 0
    async with client.stream("POST", call.path, json=call.body) as response:
        assert response.status_code == 200
        number = 0
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            number += 1
            if call.kind == "leave" and number == 2:
                return None
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                texts[choice["index"]] += text_of(choice)
                ended += choice["finish_reason"] is not None
    assert ended == call.body["n"] or call.kind == "leave"
    return texts


async def all_at_once(url: str, made: list[Call]) -> list[list[str] | None]:
    limits = httpx.Limits(max_connections=REQUESTS)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        return await asyncio.gather(*(make(client, call) for call in made))


def test_two_hundred_at_once(engine_and_model: tuple[Engine, ServedModel]) -> None:
    engine, served = engine_and_model
    made = calls(random.Random(20261130))
    with serving(create_app(served)) as url:
        together = asyncio.run(all_at_once(url, made))
        deadline = time.monotonic() + 10
        while engine.has_work():
            assert time.monotonic() < deadline, "what was left is still running"
            time.sleep(0.01)
        # Each by itself, on an engine that has nothing else to do, is answered the same.
        again = asyncio.run(one_by_one(url, [call for call in made if call.kind in ("whole", "stream")][:40]))
    assert len(together) == REQUESTS
    answered = [texts for call, texts in zip(made, together, strict=True) if call.kind in ("whole", "stream")]
    assert answered[:40] == again
    assert all(texts is not None for texts in answered)
    assert engine.pool.num_idle == engine.pool.num_blocks, "blocks were left behind"
    assert not engine._requests and not served.engine._streams


async def one_by_one(url: str, made: list[Call]) -> list[list[str] | None]:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        return [await make(client, call) for call in made]
