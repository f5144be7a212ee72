"""Train a built-in model, through the reference model that serves it.

    python -m reference.model.builtin.train dense|moe --corpus FILE --out DIR [--minutes 6 | --steps N] [--seed 0]

    loss = CE(next token) + 0.3 CE(the token after it, from the MTP layer) + 0.01 balance

Means are over the tokens that are to be learned: prose, and the answers of conversations but not their questions.

`jax.grad` goes through the very text of `reference/model/qwen3.py` and `mtp.py`. Master weights are float32; the
forward pass sees them rounded to bfloat16 (straight through), so that nothing is lost when they are saved. The balance
term (mixture of experts) is Switch's, E sum_e f_e p_e, over all routers; it moves the routers alone.
AdamW; linear warmup, then cosine over the time that is given. Most steps are short sequences, the last ones long.
Sources: Qwen3 technical report, arXiv:2505.09388; DeepSeek-V3, arXiv:2412.19437, section 2.2 (MTP);
Switch Transformer, arXiv:2101.03961, equation 4; AdamW, arXiv:1711.05101.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from reference.formats import FLOAT32, Array
from reference.kernels.embedding import embedding
from reference.kernels.rms_norm import add_rms_norm
from reference.kernels.router_top_k import router_top_k
from reference.model.builtin.checkpoint import BUILTIN, NAMES, initial_weights, save
from reference.model.builtin.packing import Packer
from reference.model.config import ModelConfig
from reference.model.mtp import mtp_logits
from reference.model.qwen3 import (
    Positions,
    attend_whole,
    before_attention,
    decoder_layer,
    logits,
    output_projection,
    project,
)
from reference.model.rope_table import rope_table
from reference.model.weights import Layer, Weights

MTP_WEIGHT = 0.3
BALANCE_WEIGHT = 0.01
WEIGHT_DECAY = 0.1
LAST_RATE = 0.02  # of the peak


@dataclass(frozen=True)
class Phase:
    """A stretch of training: sequences of one length, until this part of the time has passed."""

    rows: int
    length: int
    until: float


def positions(config: ModelConfig, length: int) -> Positions:
    cos, sin = rope_table(config.rope, config.head_dim, length)
    return Positions(jnp.arange(length, dtype=jnp.int32), jnp.asarray(cos), jnp.asarray(sin))


def rounded_to_bfloat16(weights: Weights) -> Weights:
    """The values that will be saved, still float32; gradients pass as if nothing had been rounded.

    `reduce_precision`, because XLA may drop a cast to bfloat16 and back.
    """

    def rounded(weight: Array) -> Array:
        return weight + jax.lax.stop_gradient(jax.lax.reduce_precision(weight, 8, 7) - weight)

    return jax.tree.map(rounded, weights)


def router_balance(layer: Layer, config: ModelConfig, x: Array, where: Positions) -> Array:
    """E sum_e f_e p_e of one layer: f_e the share of choices that fell on expert e, p_e its mean probability.

    1 if all experts are used alike. x [T, H] is what enters the layer; only the router learns from it.
    """
    attended = output_projection(layer, attend_whole(*before_attention(layer, config, x, where)))
    normed, _ = add_rms_norm(attended, x, layer.post_attention_norm, config.rms_norm_eps)
    assert layer.mlp.router is not None
    router_logits = project(jax.lax.stop_gradient(normed), layer.mlp.router)  # [T, E]
    expert_ids, _ = router_top_k(router_logits, config.num_experts_per_token, normalize=False)
    chosen = jnp.mean(jax.nn.one_hot(expert_ids, config.num_experts), axis=(0, 1))
    return config.num_experts * jnp.sum(chosen * jnp.mean(jax.nn.softmax(router_logits, axis=-1), axis=0))


def cross_entropy(scores: Array, targets: Array) -> Array:  # f32 [T, V], i32 [T] -> f32 [T]
    return jax.nn.logsumexp(scores, axis=-1) - jnp.take_along_axis(scores, targets[:, None], axis=-1)[:, 0]


def sequence_losses(weights: Weights, config: ModelConfig, packed: Array, where: Positions) -> dict[str, Array]:
    """Losses of one packed sequence, i32 [T + 2] (`Packer.batch`), summed over the learned tokens and divided by T;
    and the share of the tokens that is learned."""
    learned = jnp.astype(packed >= 0, jnp.float32)
    tokens = jnp.where(packed >= 0, packed, ~packed)

    @jax.checkpoint
    def run_layer(layer: Layer, x: Array) -> tuple[Array, Array]:
        balance = jnp.zeros(()) if layer.mlp.router is None else router_balance(layer, config, x, where)
        return decoder_layer(layer, config, x, where, attend_whole), balance

    @jax.checkpoint
    def next_loss(weights: Weights, x: Array) -> Array:
        return jnp.mean(learned[1:-1] * cross_entropy(logits(weights, config, x), tokens[1:-1]))

    @jax.checkpoint
    def mtp_loss(weights: Weights, x: Array) -> Array:
        return jnp.mean(learned[2:] * cross_entropy(mtp_logits(weights, config, x, tokens[1:-1], where), tokens[2:]))

    x = embedding(tokens[:-2], weights.embedding)
    balances = []
    for layer in weights.layers:
        x, balance = run_layer(layer, x)
        balances.append(balance)
    return {
        "next": next_loss(weights, x),
        "mtp": mtp_loss(weights, x),
        "balance": jnp.mean(jnp.stack(balances)),
        "learned": jnp.mean(learned),
    }


def batch_loss(
    weights: Weights, config: ModelConfig, tokens: Array, where: Positions
) -> tuple[Array, dict[str, Array]]:
    """tokens: i32 [rows, T + 2]."""
    weights = rounded_to_bfloat16(weights)
    losses = jax.vmap(lambda row: sequence_losses(weights, config, row, where))(tokens)
    means = jax.tree.map(jnp.mean, losses)
    means |= {name: means[name] / jnp.maximum(means["learned"], 1e-6) for name in ("next", "mtp")}
    return means["next"] + MTP_WEIGHT * means["mtp"] + BALANCE_WEIGHT * means["balance"], means


def optimizer() -> optax.GradientTransformation:
    """AdamW without its rate, which `step` multiplies in. Vectors (norms) do not decay."""
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(b1=0.9, b2=0.95),
        optax.add_decayed_weights(WEIGHT_DECAY, mask=lambda weights: jax.tree.map(lambda w: w.ndim > 1, weights)),
    )


State = tuple[Weights, Any]  # weights and the optimizer's state
Step = Callable[[State, Array, Array], tuple[State, dict[str, Array]]]


def make_step(config: ModelConfig, length: int) -> Step:
    """One update: (state, tokens i32 [rows, length + 2], rate f32) -> (state, losses)."""
    where = positions(config, length)

    def step(state: State, tokens: Array, rate: Array) -> tuple[State, dict[str, Array]]:
        weights, moments = state
        gradients, losses = jax.grad(batch_loss, has_aux=True)(weights, config, tokens, where)
        updates, moments = optimizer().update(gradients, moments, weights)
        weights = jax.tree.map(lambda weight, update: weight - rate * update, weights, updates)
        squares = [jnp.sum(gradient * gradient) for gradient in jax.tree.leaves(gradients)]
        return (weights, moments), losses | {"gradient": jnp.sqrt(jnp.sum(jnp.stack(squares)))}

    return step


def learning_rate(progress: float, step: int, peak: float, warmup: int) -> float:
    """progress: the part of training that has passed, 0 to 1."""
    cosine = LAST_RATE + (1.0 - LAST_RATE) * 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))
    return peak * cosine * min(1.0, (step + 1) / warmup)


def training_progress(deadline: float, steps: int | None) -> Iterator[tuple[int, float]]:
    """(step, part of training that has passed): by count if `steps` is given, else by the monotonic clock."""
    start, step = time.monotonic(), 0
    while True:
        passed = step / steps if steps else (time.monotonic() - start) / (deadline - start)
        if passed >= 1.0:
            return
        yield step, passed
        step += 1


def compile_step(config: ModelConfig, state: State, phase: Phase) -> Step:
    start = time.monotonic()
    tokens = jax.ShapeDtypeStruct((phase.rows, phase.length + 2), jnp.int32)
    rate = jax.ShapeDtypeStruct((), jnp.float32)
    step = jax.jit(make_step(config, phase.length), donate_argnums=0).lower(state, tokens, rate).compile()
    print(f"compiled {phase} in {time.monotonic() - start:.1f} s", flush=True)
    return cast(Step, step)


class Reporter:
    """Prints the losses and the speed of every so many steps."""

    def __init__(self, every: int) -> None:
        self.every, self.since, self.tokens = every, time.monotonic(), 0

    def count(self, step: int, passed: float, tokens: int, losses: Mapping[str, Array]) -> None:
        self.tokens += tokens
        if step % self.every == 0:
            shown = ", ".join(f"{name} {float(value):.3f}" for name, value in losses.items())
            now = time.monotonic()
            print(f"step {step} ({passed:.0%}): {shown}, {self.tokens / (now - self.since):,.0f} tokens/s", flush=True)
            self.since, self.tokens = now, 0


def train(config: ModelConfig, packer: Packer, phases: Sequence[Phase], arguments: argparse.Namespace) -> Weights:
    """The trained float32 weights."""
    deadline = time.monotonic() + 60.0 * arguments.minutes
    config = replace(config, dtype=FLOAT32)
    weights = initial_weights(config, arguments.seed)
    state: State = (weights, optimizer().init(weights))
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), state)
    in_flight: deque[dict[str, Array]] = deque()
    with ThreadPoolExecutor() as pool:
        # A later phase is compiled while an earlier one runs.
        compiled = {phase: pool.submit(compile_step, config, shapes, phase) for phase in phases}
        compiled[phases[0]].result()
        reporter = Reporter(arguments.report)
        for step, passed in training_progress(deadline, arguments.steps):
            phase = next(phase for phase in phases if passed < phase.until)
            tokens = packer.batch(phase.rows, phase.length)
            rate = np.float32(learning_rate(passed, step, arguments.rate, arguments.warmup))
            state, losses = compiled[phase].result()(state, tokens, rate)
            in_flight.append(losses)
            if len(in_flight) > 2:  # the host stays two steps ahead of the device, so that the clock is the device's
                jax.block_until_ready(in_flight.popleft())
            reporter.count(step, passed, tokens.size, losses)
    return state[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--corpus", type=Path, required=True, help="the file that prepare.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder for model.safetensors")
    parser.add_argument("--minutes", type=float, default=6.0, help="how long it may take in all, compilation included")
    parser.add_argument("--steps", type=int, help="train this many steps instead, reproducibly")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--warmup", type=int, default=200, help="steps")
    parser.add_argument("--tokens", type=int, default=32768, help="tokens a step")
    parser.add_argument("--length", type=int, default=1024, help="tokens of a sequence at first")
    parser.add_argument("--long", type=int, default=4096, help="tokens of a sequence at last")
    parser.add_argument("--short-part", type=float, default=0.75, help="part of the time for short sequences")
    parser.add_argument("--report", type=int, default=100, help="steps between two lines of output")
    arguments = parser.parse_args()
    directory = BUILTIN / arguments.name
    config = ModelConfig.from_file(directory / "config.json")
    phases = (
        Phase(max(1, arguments.tokens // arguments.length), arguments.length, arguments.short_part),
        Phase(max(1, arguments.tokens // arguments.long), arguments.long, math.inf),
    )
    print(f"{arguments.name} on {jax.devices()[0]}", flush=True)
    weights = train(config, Packer(arguments.corpus, arguments.seed), phases, arguments)
    size = save(arguments.out, config, weights)
    print(f"saved {size:,} bytes", flush=True)


if __name__ == "__main__":
    main()
