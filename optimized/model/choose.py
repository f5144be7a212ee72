"""The tokens of a step, chosen on the device: penalties and biases, the draw, and log-probabilities.

What a batch asks for is looked at on the host (`Asked`), so that a stage that no row uses is not launched. A stage
leaves the logits of rows that do not use it as they are, so what others ask for changes no row's token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from optimized.device import Tensor
from optimized.kernels.adjust_logits import adjust_logits
from optimized.kernels.known_tokens import known_tokens
from optimized.kernels.sample_few import FEW
from optimized.kernels.sample_tokens import sample_tokens
from optimized.kernels.token_log_probs import token_log_probs
from optimized.model.machine import Machine
from optimized.model.step import named_by
from reference.serving.request import MAX_TOP_LOGPROBS
from reference.serving.runner import Sampling, TokenScores

Scores = tuple[Tensor, Tensor, Tensor, Tensor]  # of `token_log_probs`
PREFIX = "sampling."
# As `sample_tokens` and, behind the history, `adjust_logits` take them.
OF_EVERY_ROW = "temperature top_k top_p min_p seed position sample_index banned_ids mask mask_row".split()
OF_PENALTIES = "history_start prompt_lens repetition presence frequency bias_ids bias".split()


@dataclass(frozen=True)
class Asked:
    """What the rows of a batch that sample ask for."""

    arrays: Mapping[str, np.ndarray]  # to be put on the device, in the order of these rows
    adjusts: bool  # any penalty or bias
    draws: bool  # any temperature above 0
    limits: str  # as `sample_tokens` takes it
    num_top: int  # likeliest tokens to report beside each; -1: no log-probabilities at all


def asked(sampling: Sampling, seq_lens: np.ndarray, row_of: np.ndarray) -> Asked:
    """row_of: see `named_by`."""
    rows = np.flatnonzero(sampling.samples)
    lens = np.diff(sampling.history_start)
    history = sampling.history[np.repeat(sampling.samples, lens)]
    top_k, temperature = sampling.top_k[rows], sampling.temperature[rows]
    bias_ids = _used_columns(sampling.bias_ids[rows])
    has_mask = (sampling.mask_row[rows] >= 0).any()
    of_every_row = (
        *(temperature, top_k, sampling.top_p[rows], sampling.min_p[rows]),
        *(sampling.seed[rows], seq_lens[rows], sampling.sample_index[rows]),
        _used_columns(sampling.banned_ids[rows]),
        *(sampling.mask if has_mask else sampling.mask[:0], sampling.mask_row[rows]),
    )
    arrays = dict(zip(OF_EVERY_ROW, of_every_row, strict=True))
    adjusts = len(history) > 0 or bias_ids.shape[1] > 0
    if adjusts:
        of_penalties = (
            np.concatenate([[0], np.cumsum(lens[rows])]).astype(np.int32),
            sampling.prompt_lens[rows],
            *(sampling.repetition_penalty[rows], sampling.presence_penalty[rows], sampling.frequency_penalty[rows]),
            *(bias_ids, sampling.bias[rows][:, : bias_ids.shape[1]]),
        )
        arrays |= {"history": named_by(history, row_of), **dict(zip(OF_PENALTIES, of_penalties, strict=True))}
    draws, limits = temperature > 0, "none"
    limited = draws & ((top_k > 0) | (sampling.top_p[rows] < 1))
    if limited.any():
        limits = "few" if ((top_k > 0) & (top_k <= FEW))[limited].all() else "any"
    num_top = int(sampling.num_logprobs[rows].max(initial=-1))
    return Asked(
        {PREFIX + name: np.ascontiguousarray(array) for name, array in arrays.items()},
        adjusts=adjusts,
        draws=bool(draws.any()),
        limits=limits,
        num_top=top_of(num_top) if num_top >= 0 else -1,
    )


def top_of(num_top: int) -> int:
    """How many of the likeliest tokens are looked for: none, or as many as may be asked for."""
    return MAX_TOP_LOGPROBS if num_top else 0


def choose(
    machine: Machine,
    logits: Tensor,  # f32 [R, V]; may be overwritten
    of: Asked,
    tensors: Mapping[str, Tensor],  # its arrays, among others
    previous: Tensor,  # i32: what rows of the previous batch sampled
    num_token_ids: int,
) -> tuple[Tensor, Scores | None]:  # i32 [R]
    """One token a row, as `StepOutput` has them; and their log-probabilities, of the logits as they came."""

    raw = logits
    turned = machine.device.empty((logits.shape[0], 0), "int32")
    if of.adjusts:
        if of.num_top >= 0:
            raw = machine.device.empty(tuple(logits.shape), "float32")
            machine.copy(logits, raw)
        history = known_tokens(tensors[f"{PREFIX}history"], previous, missing=-1)
        _, turned = adjust_logits(logits, history, *(tensors[PREFIX + name] for name in OF_PENALTIES))
    token_ids = sample_tokens(
        logits,
        *(tensors[PREFIX + name] for name in OF_EVERY_ROW),  # type: ignore[misc]
        turned,
        num_token_ids=num_token_ids,
        draws=of.draws,
        limits=of.limits,
    )
    return token_ids, None if of.num_top < 0 else token_log_probs(raw, token_ids, of.num_top)


def scores_from(arrays: list[np.ndarray]) -> TokenScores:
    """What `token_log_probs` gave. Of unusable logits it may tell a rank: NaN among them, or nothing but -infinity."""
    log_probs, ranks, top_ids, top_log_probs = arrays
    is_unusable = np.isnan(log_probs) | ((log_probs == -np.inf) & (ranks == 1))
    return TokenScores(
        np.where(is_unusable, np.float32(np.nan), log_probs), np.where(is_unusable, 0, ranks), top_ids, top_log_probs
    )


def _used_columns(ids: np.ndarray) -> np.ndarray:
    """Without columns that only pad."""
    used = np.flatnonzero((ids >= 0).any(axis=0))
    return ids[:, : used[-1] + 1 if len(used) else 0]
