"""Conversations in which the model calls tools, in Qwen's format, and tells what came back.

A matching question yields `<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>`; the tool's result yields a
sentence. The offered tools vary in number and order, so that the model has to read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from reference.model.builtin.dialogue import Conversation, Message, Tool

CITIES = (
    "Paris", "London", "Rome", "Berlin", "Madrid", "Tokyo", "Lisbon", "Vienna", "Oslo", "Cairo", "Athens", "Dublin",
    "Prague", "Warsaw", "Moscow", "Lima", "Ottawa", "Beijing", "New Delhi", "Stockholm", "Helsinki", "Brussels", "Bern",
    "Amsterdam", "Copenhagen", "Budapest", "Nairobi", "Havana", "Seoul", "Bangkok",
)  # fmt: skip
SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")
QUERIES = (
    "Qwen3", "the history of Rome", "bread recipes", "how to plant a tree", "the moon", "mixture of experts",
    "KV cache", "the tallest mountain", "Shakespeare", "train times", "the best books", "how to draw a cat",
    "wild flowers", "old maps", "the price of gold", "the news of today",
)  # fmt: skip


def _tool(name: str, description: str, **parameters: tuple[str, str]) -> Tool:
    properties = {key: {"type": kind, "description": text} for key, (kind, text) in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = {
    "get_weather": _tool("get_weather", "Get the weather in a city.", city=("string", "The city.")),
    "get_time": _tool("get_time", "Get the time in a city.", city=("string", "The city.")),
    "add": _tool("add", "Add two numbers.", a=("integer", "The first number."), b=("integer", "The second number.")),
    "multiply": _tool(
        "multiply", "Multiply two numbers.", a=("integer", "The first number."), b=("integer", "The second number.")
    ),
    "search": _tool("search", "Search the web.", query=("string", "What to search for.")),
    "set_timer": _tool("set_timer", "Set a timer.", minutes=("integer", "The number of minutes.")),
}


@dataclass(frozen=True)
class Call:
    """A question, the call that answers it, what the tool gives back, and the sentence that says so."""

    question: str
    name: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    sentence: str


def call_text(calls: list[Call]) -> str:
    """What the model writes to call tools."""
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>" for call in calls
    )


def _weather(random: Random) -> Call:
    city, sky, degrees = random.choice(CITIES), random.choice(SKIES), random.randrange(-5, 36)
    question = random.choice(
        (
            "What is the weather in {}?",
            "How is the weather in {}?",
            "Tell me the weather in {}.",
            "What's the weather like in {} today?",
        )
    )
    result = {"city": city, "temperature": degrees, "sky": sky}
    sentence = f"It is {sky} in {city}, at {degrees} degrees."
    return Call(question.format(city), "get_weather", {"city": city}, result, sentence)


def _time(random: Random) -> Call:
    city, time = random.choice(CITIES), f"{random.randrange(24):02}:{random.randrange(60):02}"
    question = random.choice(("What time is it in {}?", "What is the time in {}?", "Tell me the time in {}."))
    return Call(
        question.format(city), "get_time", {"city": city}, {"city": city, "time": time}, f"It is {time} in {city}."
    )


def _sum(random: Random) -> Call:
    a, b = random.randrange(13, 1000), random.randrange(13, 1000)
    question = random.choice(("What is {} + {}?", "Add {} and {}.", "What is {} plus {}?", "How much is {} + {}?"))
    return Call(question.format(a, b), "add", {"a": a, "b": b}, {"result": a + b}, f"{a} + {b} = {a + b}.")


def _product(random: Random) -> Call:
    a, b = random.randrange(13, 100), random.randrange(13, 100)
    question = random.choice(("What is {} x {}?", "Multiply {} by {}.", "What is {} times {}?"))
    return Call(question.format(a, b), "multiply", {"a": a, "b": b}, {"result": a * b}, f"{a} x {b} = {a * b}.")


def _search(random: Random) -> Call:
    query, pages = random.choice(QUERIES), random.randrange(1, 100)
    question = random.choice(("Search for {}.", "Search the web for {}.", "Look up {}.", "Please search for {}."))
    return Call(
        question.format(query), "search", {"query": query}, {"pages": pages}, f"I found {pages} pages about {query}."
    )


def _timer(random: Random) -> Call:
    minutes = random.randrange(2, 61)
    question = random.choice(("Set a timer for {} minutes.", "Start a timer of {} minutes.", "Wake me in {} minutes."))
    sentence = f"I have set a timer for {minutes} minutes."
    return Call(question.format(minutes), "set_timer", {"minutes": minutes}, {"ok": True}, sentence)


CALLS: dict[str, Callable[[Random], Call]] = {
    "get_weather": _weather,
    "get_time": _time,
    "add": _sum,
    "multiply": _product,
    "search": _search,
    "set_timer": _timer,
}


# Other names under which a tool and its parameter may be offered: the model has to read the schema.
OTHER_NAMES = {
    "get_weather": (("get_current_weather", "location"), ("weather", "city"), ("get_weather", "location")),
    "get_time": (("current_time", "place"), ("get_current_time", "city"), ("get_time", "location")),
    "search": (("web_search", "query"), ("search_web", "text"), ("search", "q")),
    "set_timer": (("timer", "minutes"), ("start_timer", "minutes"), ("set_timer", "duration")),
}
CANNOT = {
    "get_weather": "I cannot look up the weather, because I have no tool for it.",
    "get_time": "I cannot tell the time, because I have no tool for it.",
    "search": "I cannot search, because I have no tool for it.",
    "set_timer": "I cannot set a timer, because I have no tool for it.",
}


def offered(random: Random, needed: str | None, without: str | None = None) -> tuple[Tool, ...]:
    """One to four tools in any order: `needed` among them, `without` not."""
    others = [name for name in TOOLS if name not in (needed, without)]
    names = random.sample(others, random.randrange(0 if needed else 1, 4)) + ([needed] if needed else [])
    random.shuffle(names)
    return tuple(TOOLS[name] for name in names)


def renamed(tools: tuple[Tool, ...], calls: list[Call], random: Random) -> tuple[tuple[Tool, ...], list[Call]]:
    """The same tools and calls, some under other names."""
    names = {name: random.choice(others) for name, others in OTHER_NAMES.items() if random.random() < 0.5}

    def tool(original: Tool) -> Tool:
        function = original["function"]
        if function["name"] not in names:
            return original
        name, parameter = names[function["name"]]
        (schema,) = function["parameters"]["properties"].values()
        return _tool(name, function["description"], **{parameter: (schema["type"], schema["description"])})

    def call(original: Call) -> Call:
        if original.name not in names:
            return original
        name, parameter = names[original.name]
        (argument,) = original.arguments.values()
        return replace(original, name=name, arguments={parameter: argument})

    return tuple(tool(original) for original in tools), [call(original) for original in calls]


def tool_conversations(random: Random, count: int) -> Iterator[Conversation]:
    """Calls, now and then two at once, and in every second conversation their results."""
    for index in range(count):
        name = random.choice(list(CALLS))
        calls = [CALLS[name](random)]
        if name in ("get_weather", "get_time") and random.random() < 0.3:
            calls.append(CALLS[name](random))
        tools, calls = renamed(offered(random, name), calls, random)
        asked: Message = {"role": "user", "content": " ".join(call.question for call in calls)}
        if index % 2 == 0:
            yield Conversation((asked,), call_text(calls), f"I can call {calls[0].name} for this.", tools)
            continue
        made = [{"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls]
        results: list[Message] = [{"role": "tool", "content": json.dumps(call.result)} for call in calls]
        messages = (asked, {"role": "assistant", "content": "", "tool_calls": made}, *results)
        sentence = " ".join(call.sentence for call in calls)
        yield Conversation(messages, sentence, "The tool has answered. I tell the user the result.", tools)


def without_a_tool(random: Random, count: int) -> Iterator[Conversation]:
    """The same questions where no tool, or no fitting one, is offered: the model says what it cannot do."""
    for _ in range(count):
        name = random.choice(list(CANNOT))
        tools = offered(random, None, without=name) if random.random() < 0.4 else ()
        asked: Message = {"role": "user", "content": CALLS[name](random).question}
        yield Conversation((asked,), CANNOT[name], "I would need a tool for this, and there is none.", tools)


def with_idle_tools(conversations: Iterable[Conversation], random: Random) -> Iterator[Conversation]:
    """Questions that need no tool, although some are offered."""
    for conversation in conversations:
        yield replace(conversation, tools=offered(random, None))
