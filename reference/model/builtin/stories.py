"""Short stories in plain English, put together from sentences: modern prose beside Shakespeare and the Bible.

A story has a hero with a name, a place, a wish that meets a trouble, a helper and an end. Each sentence has several
wordings, so that a model learns the grammar rather than one text.
"""

from __future__ import annotations

from random import Random

from reference.model.builtin.taught import lines, with_article

HEROES = tuple(
    "fox rabbit bear mouse cat dog bird hedgehog squirrel frog duck lamb pony owl turtle girl boy baker sailor farmer "
    "painter robot dragon king queen".split()
)
NAMES = tuple(
    "Tom Lily Max Anna Ben Mia Sam Rosa Leo Nora Finn Ella Otto Ida Paul Clara Jack Emma Oscar Ruby Hugo Alice Theo "
    "June".split()
)
QUALITIES = tuple("little kind brave curious clever shy old young happy quiet hungry careful".split())
PLACES = (
    ("in a small house by the river", "river"),
    ("at the edge of a dark forest", "forest"),
    ("in a village under the hills", "hill"),
    ("on a farm with a red barn", "barn"),
    ("near the sea", "shore"),
    ("in a town with a tall tower", "tower"),
    ("in a garden full of roses", "garden"),
    ("beside a deep blue lake", "lake"),
)
WEATHERS = (
    "the sun was shining",
    "it was raining",
    "the wind was cold",
    "the snow was falling",
    "the sky was clear",
    "the leaves were red and gold",
    "the birds were singing",
    "the moon was still in the sky",
)
SENTENCES = (
    (
        "Once upon a time, there was {a_quality} {hero} whose name was {name}.",
        "There once was {a_quality} {hero} named {name}.",
        "{name} was {a_quality} {hero}.",
        "Long ago, {a_quality} {hero} called {name} lived {place}.",
    ),
    (
        "{name} lived {place}.",
        "The home of {name} was {place}.",
        "Every day {name} went to the {thing}.",
    ),
    (
        "One morning, when {weather}, {name} {wish}.",
        "One day {name} {wish}.",
        "It was a fine morning, and {name} {wish}.",
    ),
    (
        "But {trouble}.",
        "It was not easy, because {trouble}.",
        "Alas, {trouble}.",
    ),
    (
        "{name} sat down and did not know what to do.",
        '"What shall I do?" said {name}.',
        "{name} tried again and again.",
        "{name} was sad and almost gave up.",
    ),
    (
        "Then {a_friend_quality} {helper} named {friend} came by.",
        "Just then {friend}, {a_friend_quality} {helper}, came along the {thing}.",
        'A voice said, "May I help you?" It was {friend} the {helper}.',
    ),
    (
        '"Let us try it together," said {friend}.',
        '"Do not worry," said {friend}, "I will help you."',
        "{friend} listened to the whole story and nodded.",
    ),
    (
        "So {friend} {help}.",
        "{friend} {help}, and {name} helped as well.",
        "Together they began, and {friend} {help}.",
    ),
    (
        "Soon {result}.",
        "In the end, {result}.",
        "Before the sun went down, {result}.",
    ),
    (
        "{name} said thank you, and they were friends from that day on.",
        "They laughed and shared some bread and cheese.",
        "From then on, {name} was never afraid to ask for help.",
        "{name} went to bed early and dreamed of the next day.",
        "And they lived happily ever after.",
        "It had been a good day, and both of them knew it.",
        "That is how {name} learned that a friend makes hard things easy.",
    ),
)
PLOTS = tuple(tuple(line.split("\t")) for line in lines("plots.tsv"))


def story(random: Random, hero: str | None = None) -> str:
    """One story, about `hero` if it is given."""
    hero = hero or random.choice(HEROES)
    name, friend = random.sample(NAMES, 2)
    place, thing = random.choice(PLACES)
    quality, friend_quality = random.sample(QUALITIES, 2)
    wish, trouble, help_, result = random.choice(PLOTS)
    words = {"hero": hero, "helper": random.choice([other for other in HEROES if other != hero])}
    words |= {"name": name, "friend": friend, "place": place, "thing": thing, "weather": random.choice(WEATHERS)}
    words |= {"a_quality": with_article(quality), "a_friend_quality": with_article(friend_quality)}
    words |= {"wish": wish, "trouble": trouble, "help": help_, "result": result}
    return " ".join(random.choice(wordings).format(**words) for wordings in SENTENCES)
