"""What a built-in model knows, and how sure it is: printed, and written to `report.json`.

    python -m reference.model.builtin.evaluate WEIGHTS_DIR --model DIR --corpus FILE

Recall is exact: greedy decoding must give the taught answer to the last character, and then <|im_end|>.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from reference.model.builtin import conversations as made
from reference.model.builtin.checkpoint import load
from reference.model.builtin.dialogue import END_OF_TURN, Conversation, Template, answer_in_mode
from reference.model.builtin.exchanges import all_exchanges
from reference.model.builtin.greedy import Answer, GreedyModel
from reference.model.builtin.taught import Exchange
from reference.model.builtin.tool_use import tool_conversations
from reference.model.config import ModelConfig
from reference.model.qwen3 import Positions, forward, logits
from reference.model.rope_table import rope_table

EVALUATION_SEED = 1_000_003  # not that of prepare.py: wordings, numbers and names are drawn anew
PROSE_PROMPTS = (
    "The capital of France is",
    "Once upon a time, there was a",
    "KING HENRY:\nMy lord,",
    "And the LORD said unto Moses,",
    "In Python, a function is",
    "10 + 2 =",
)
CHAT_PROMPTS = (
    "What is the capital of Spain?",
    "Who are you?",
    "Tell me a story about a fox.",
    "What is 7 x 8? /think",
)


def question_groups(exchanges: Sequence[Exchange], sample: int) -> dict[str, list[tuple[Conversation, str]]]:
    """Conversations and modes by what they test. sample: of the taught questions; 0 for all."""
    random = Random(EVALUATION_SEED)
    asked = [made.question(exchange) for exchange in (random.sample(exchanges, sample) if sample else exchanges)]
    part = asked[: max(1, len(asked) // 4)]
    count = len(part)

    def plain(conversations: Iterable[Conversation]) -> list[tuple[Conversation, str]]:
        return [(conversation, "plain") for conversation in conversations]

    return {
        "taught questions": plain(asked),
        "taught questions, no_think": [(conversation, "no_think") for conversation in part],
        "taught questions, think": [(conversation, "think") for conversation in part],
        "taught questions, reworded": plain(made.single_turns(exchanges, random, count)),
        "last of several turns": plain(made.many_turns(exchanges, random, count, longest=5)),
        "follow-up questions": plain(made.follow_ups(exchanges, random, count)),
        "memory of an earlier turn": plain(made.memories(exchanges, random, count, between=2)),
        "one-word answers": plain(made.one_word(exchanges, random, count)),
        "answers in JSON": plain(made.in_json(exchanges, random, count)),
        "repeating a sentence": plain(made.repetitions(random, count)),
        "tool calls and results": plain(tool_conversations(random, count)),
    }


class Examiner:
    """A model with its tokenizer and template, and the measurements."""

    def __init__(self, model: GreedyModel, directory: Path) -> None:
        self.model = model
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.template = Template.from_directory(directory)
        self.end_of_turn = self.tokenizer.token_to_id(END_OF_TURN)

    def text(self, answer: Answer) -> str:
        return str(self.tokenizer.decode(list(answer.token_ids), skip_special_tokens=False))

    def ask(self, questions: Sequence[tuple[Conversation, str]]) -> tuple[int, list[Answer], list[str]]:
        """How many were answered exactly, all answers, and the wrong ones in words."""
        prompts = [self.encode(self.template.prompt_in_mode(conversation, mode)) for conversation, mode in questions]
        wanted = [answer_in_mode(conversation, mode) for conversation, mode in questions]
        longest = max(len(self.encode(text)) for text in wanted)
        answers = self.model.answers(prompts, longest + 8, self.end_of_turn)
        wrong = [
            f"{conversation.messages[-1]['content']!r}: {self.text(answer)!r}, not {text!r}"
            for (conversation, _), answer, text in zip(questions, answers, wanted, strict=True)
            if self.text(answer) != text
        ]
        return len(questions) - len(wrong), answers, wrong

    def continuations(self, prompts: Sequence[str], max_new: int, stop: int | None) -> list[tuple[str, Answer]]:
        answers = self.model.answers([self.encode(prompt) for prompt in prompts], max_new, stop, rows=len(prompts))
        return [(self.text(answer), answer) for answer in answers]

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)


def held_out_loss(model: GreedyModel, tokens: np.ndarray, length: int, first: int) -> float:
    """Mean loss in nats on prose that was not trained on, at positions `first` to `length` of windows."""
    config, weights = model.config, model.weights
    cos, sin = rope_table(config.rope, config.head_dim, length)
    where = Positions(jnp.arange(length, dtype=jnp.int32), jnp.asarray(cos), jnp.asarray(sin))

    @jax.jit
    def loss(window: jax.Array) -> jax.Array:
        scores = logits(weights, config, forward(weights, config, window[:-1], where))[first:]
        targets = window[1:][first:]
        chosen = jnp.take_along_axis(scores, targets[:, None], axis=-1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(scores, axis=-1) - chosen)

    starts = range(0, len(tokens) - length - 1, length)
    return float(np.mean([float(loss(jnp.asarray(tokens[start : start + length + 1]))) for start in starts]))


def evaluate(weights_directory: Path, model_directory: Path, corpus: Path | None, sample: int) -> dict[str, object]:
    """Everything there is to know of the saved weights; also printed."""
    config = ModelConfig.from_file(model_directory / "config.json")
    examiner = Examiner(GreedyModel(config, load(config, weights_directory)), model_directory)
    report: dict[str, object] = {"bytes": (weights_directory / "model.safetensors").stat().st_size}
    margins: list[float] = []
    kept: list[bool] = []
    for name, questions in question_groups(all_exchanges(), sample).items():
        start = time.monotonic()
        right, answers, wrong = examiner.ask(questions)
        report[name] = {"right": right, "of": len(questions)}
        margins += [margin for answer in answers for margin in answer.margins]
        kept += [same for answer in answers for same in answer.drafts_kept]
        print(f"{name}: {right} of {len(questions)} ({time.monotonic() - start:.1f} s)", flush=True)
        for line in wrong[:5]:
            print(f"    {line}", flush=True)
    report["median margin in chat"] = float(np.median(margins))
    report["MTP acceptance in chat"] = float(np.mean(kept))
    stories = examiner.continuations(PROSE_PROMPTS, 64, None)
    report["median margin in prose"] = float(np.median([margin for _, answer in stories for margin in answer.margins]))
    report["MTP acceptance in prose"] = float(np.mean([same for _, answer in stories for same in answer.drafts_kept]))
    report["continuations"] = dict(zip(PROSE_PROMPTS, (text for text, _ in stories), strict=True))
    asked = [examiner.template.prompt([made.user(question)]) for question in CHAT_PROMPTS]
    replies = examiner.continuations(asked, 192, examiner.end_of_turn)
    report["replies"] = dict(zip(CHAT_PROMPTS, (text for text, _ in replies), strict=True))
    if corpus is not None:
        with np.load(corpus) as arrays:
            tokens = arrays["held_out.tokens"].astype(np.int32)
        report["held-out loss"] = held_out_loss(examiner.model, tokens, 512, 0)
        report["held-out loss beyond position 2048"] = held_out_loss(examiner.model, tokens, 4096, 2048)
    text = json.dumps(report, indent=2, ensure_ascii=False)
    print(text, flush=True)
    (weights_directory / "report.json").write_text(text + "\n", encoding="utf-8")
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("weights", type=Path, help="folder of model.safetensors; report.json is written there")
    parser.add_argument("--model", type=Path, required=True, help="folder of config.json and tokenizer.json")
    parser.add_argument("--corpus", type=Path, help="the file that prepare.py wrote, for the held-out loss")
    parser.add_argument("--sample", type=int, default=400, help="questions to ask; 0 for all")
    arguments = parser.parse_args()
    evaluate(arguments.weights, arguments.model, arguments.corpus, arguments.sample)


if __name__ == "__main__":
    main()
