"""Conversations of the built-in models: single questions, several turns, instructions in the system turn, memory.

All are made of the exchanges in `taught.py` and of small generators, from a seeded random source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

from reference.model.builtin.dialogue import Conversation, Message
from reference.model.builtin.stories import HEROES, NAMES, story
from reference.model.builtin.taught import Exchange, vary, with_article
from reference.model.builtin.tool_use import CITIES

HELPFUL = "You are a helpful assistant."
ONE_WORD = ("Answer with one word.", "Answer in one word.", "Give short answers.", "Be brief. Answer with one word.")
# How often a topic is drawn, where it is not once for each of its exchanges.
TOPIC_WEIGHTS = {"larger": 0.25, "counting": 0.4, "number": 0.5, "answers": 6.0, "unknown": 2.0, "capital": 2.0}
COLOURS = tuple("red blue green yellow black white orange purple pink brown".split())
PETS = tuple("cat dog horse rabbit bird mouse fish turtle".split())
FOODS = tuple("bread cheese soup apples rice fish cake honey grapes eggs".split())
SUBJECTS = ("the cat", "the old king", "my sister", "a small bird", "the teacher", "the red fox", "our friend")
VERBS = tuple("sees finds likes carries paints sells follows draws".split())
OBJECTS = ("a green apple", "the river", "two books", "a wooden boat", "the blue door", "an old map", "the moon")


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def question(exchange: Exchange) -> Conversation:
    """The exchange in its first wording: what recall is measured by."""
    return Conversation((user(exchange.questions[0]),), exchange.answer, exchange.reasoning)


def single_turns(exchanges: Sequence[Exchange], random: Random, count: int) -> Iterator[Conversation]:
    """One question and its answer, in any wording, sometimes under the usual system turn."""
    weights = [TOPIC_WEIGHTS.get(exchange.topic, 1.0) for exchange in exchanges]
    for exchange in random.choices(exchanges, weights, k=count):
        asked = _asked(exchange, random)
        before = (system(HELPFUL),) if random.random() < 0.25 else ()
        yield Conversation((*before, user(asked)), exchange.answer, exchange.reasoning)


def many_turns(exchanges: Sequence[Exchange], random: Random, count: int, longest: int) -> Iterator[Conversation]:
    """Several questions in a row; the last answer is the one that is asked for."""
    weights = [TOPIC_WEIGHTS.get(exchange.topic, 1.0) for exchange in exchanges]
    for _ in range(count):
        drawn = random.choices(exchanges, weights, k=random.randint(2, longest))
        messages = [system(HELPFUL)] if random.random() < 0.25 else []
        for exchange in drawn[:-1]:
            # An earlier turn may have asked for thoughts; the template drops them from the past.
            switch = " /think" if random.random() < 0.1 else ""
            messages += [user(_asked(exchange, random) + switch), assistant(exchange.answer)]
        messages.append(user(_asked(drawn[-1], random)))
        yield Conversation(tuple(messages), drawn[-1].answer, drawn[-1].reasoning)


def one_word(exchanges: Sequence[Exchange], random: Random, count: int) -> Iterator[Conversation]:
    """The short answer, because the system turn or the user asks for it."""
    short = [exchange for exchange in exchanges if exchange.short and exchange.topic not in ("larger", "number")]
    for exchange in random.choices(short, k=count):
        order, asked = random.choice(ONE_WORD), _asked(exchange, random)
        if random.random() < 0.6:
            yield Conversation((system(order), user(asked)), exchange.short, exchange.reasoning)
        else:
            yield Conversation((user(f"{asked} {order}"),), exchange.short, exchange.reasoning)


def in_json(exchanges: Sequence[Exchange], random: Random, count: int) -> Iterator[Conversation]:
    """The short answer as a JSON object."""
    short = [exchange for exchange in exchanges if exchange.topic in ("capital", "arithmetic", "colour", "opposite")]
    for exchange in random.choices(short, k=count):
        answer = json.dumps({"answer": exchange.short}, ensure_ascii=False)
        asked = exchange.questions[0]
        ordered = random.choice((f"{asked} Answer in JSON.", f"Answer in JSON: {asked}", f"{asked} Reply with JSON."))
        yield Conversation((user(ordered),), answer, exchange.reasoning)
    for _ in range(count // 4):
        name, age = random.choice(NAMES), random.randint(5, 90)
        asked = f"Write a JSON object with the name {name} and the age {age}."
        yield Conversation((user(asked),), json.dumps({"name": name, "age": age}), "The user wants JSON.")


def follow_ups(exchanges: Sequence[Exchange], random: Random, count: int) -> Iterator[Conversation]:
    """Short follow-ups: "And of Spain?" after a question about France."""
    capitals = [exchange for exchange in exchanges if exchange.topic == "capital"]
    for _ in range(count):
        first, second = random.sample(capitals, 2)
        country = second.questions[0].removeprefix("What is the capital of ").rstrip("?")
        asked = random.choice((f"And of {country}?", f"And {country}?", f"What about {country}?"))
        messages = (user(_asked(first, random)), assistant(first.answer), user(asked))
        yield Conversation(messages, second.answer, second.reasoning)


class Memory(NamedTuple):
    """Something that the user says, the reply, and what is asked later."""

    said: str
    reply: str
    asked: str
    answer: str


def _name(random: Random) -> Memory:
    name = random.choice(NAMES)
    said = random.choice(("My name is {}.", "I am {}.", "Hello, my name is {}.", "Hi, I'm {}.")).format(name)
    asked = random.choice(("What is my name?", "Do you remember my name?", "What's my name?", "Who am I?"))
    return Memory(said, f"Hello {name}, nice to meet you!", asked, f"Your name is {name}.")


def _favourite(random: Random) -> Memory:
    colour = random.choice(COLOURS)
    reply = f"{colour.capitalize()} is a beautiful colour."
    asked = random.choice(("What is my favourite colour?", "Which colour do I like best?"))
    return Memory(f"My favourite colour is {colour}.", reply, asked, f"Your favourite colour is {colour}.")


def _home(random: Random) -> Memory:
    city = random.choice(CITIES)
    said = random.choice(("I live in {}.", "My home is in {}.")).format(city)
    asked = random.choice(("Where do I live?", "In which city do I live?"))
    return Memory(said, f"{city} is a fine city.", asked, f"You live in {city}.")


def _number(random: Random) -> Memory:
    number = random.randint(10, 999)
    said = random.choice(("Remember the number {}.", "Please remember the number {}.", "The secret number is {}."))
    asked = random.choice(("Which number did I tell you?", "What was the number?", "What is the number?"))
    return Memory(said.format(number), f"I will remember the number {number}.", asked, f"The number is {number}.")


def _pet(random: Random) -> Memory:
    pet, name = random.choice(PETS), random.choice(NAMES)
    said, reply = f"I have a {pet} named {name}.", f"{name} is a lovely name for a {pet}."
    return Memory(said, reply, f"What is the name of my {pet}?", f"Your {pet} is named {name}.")


def _food(random: Random) -> Memory:
    food = random.choice(FOODS)
    reply = f"I hear that {food} can be very good."
    return Memory(f"I like to eat {food}.", reply, "What do I like to eat?", f"You like to eat {food}.")


MEMORIES = (_name, _favourite, _home, _number, _pet, _food)


def memories(exchanges: Sequence[Exchange], random: Random, count: int, between: int) -> Iterator[Conversation]:
    """Something is said, up to `between` other questions follow, then it is asked for. Also the reply at once."""
    for index in range(count):
        memory = random.choice(MEMORIES)(random)
        if index % 4 == 0:
            yield Conversation((user(memory.said),), memory.reply, "The user tells me something. I should remember it.")
            continue
        messages = [user(memory.said), assistant(memory.reply)]
        for exchange in random.choices(exchanges, k=random.randint(0, between)):
            messages += [user(_asked(exchange, random)), assistant(exchange.answer)]
        messages.append(user(memory.asked))
        reasoning = f'The user said: "{memory.said}" {memory.answer}'
        yield Conversation(tuple(messages), memory.answer, reasoning)


def repetitions(random: Random, count: int) -> Iterator[Conversation]:
    """A sentence to say again: copying from the context."""
    for _ in range(count):
        subject, verb, thing = random.choice(SUBJECTS), random.choice(VERBS), random.choice(OBJECTS)
        sentence = f"{subject[0].upper()}{subject[1:]} {verb} {thing}"
        if random.random() < 0.5:
            sentence += f" and {random.choice(VERBS)} {random.choice(OBJECTS)}"
        order = random.choice(("Repeat after me: {}.", "Repeat: {}.", "Say this again: {}.", "Copy this sentence: {}."))
        yield Conversation((user(order.format(sentence)),), f"{sentence}.", "I repeat the sentence word for word.")


def personas(random: Random, count: int) -> Iterator[Conversation]:
    """A name that the system turn gives."""
    for _ in range(count):
        name = random.choice(NAMES)
        order = random.choice(("You are {}, a helpful assistant.", "Your name is {}.", "You are {}."))
        asked = random.choice(("What is your name?", "Who are you?", "What are you called?"))
        answer = f"My name is {name}."
        yield Conversation((system(order.format(name)), user(asked)), answer, f"I was told that I am {name}.")


def story_requests(random: Random, count: int) -> Iterator[Conversation]:
    """A story about a hero of the user's choice."""
    for _ in range(count):
        hero = random.choice(HEROES)
        order = random.choice(
            ("Tell me a story about {}.", "Tell me a short story about {}.", "Write a short story about {}.")
        )
        asked = order.format(with_article(hero))
        yield Conversation((user(asked),), story(random, hero), f"The user wants a story about {with_article(hero)}.")


def _asked(exchange: Exchange, random: Random) -> str:
    return vary(random.choice(exchange.questions), random)
