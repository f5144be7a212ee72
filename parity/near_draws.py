"""Which tokens a draw may give: the one that the reference gives, and those that differ from it by rounding alone.

The draw is the largest of many perturbed logits, of those that top-p and min-p keep. Logarithms that err by an ULP, and
sums of probabilities in another order, decide where two perturbed logits are that near, or a probability is that near
to where a limit ends. Here all of it is computed in float64, from the float32 numbers that every panel has to the bit
(logits after the temperature and top-k, their distances to the largest, uniforms), and a token is right if it can be
the largest within these errors, and no others:

- LOG_ULPS of float32 for each of the noise's two logarithms;
- SUM, of the larger side of what top-p compares: what precedes a token, and the share of the whole;
- EXP_ULPS of float32 for the exponential that min-p compares.

Shares of 1 and 0 have no error, and neither have sums of these. A greedy row has one right token.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reference.formats import Array
from reference.kernels.philox import uniform
from reference.kernels.sample_tokens import allowed_tokens, sample_tokens
from reference.kernels.sampling import apply_temperature, is_usable, keep_top_k, mask_tokens

LOG_ULPS = 4
EXP_ULPS = 4
SUM = 2.0**-19  # 32 ULPs
_ULP = 2.0**-23


def nearly_drawn(**arguments: Any) -> Array:  # i32 [R, n]
    """Of each row, the tokens that a draw may give; the first of them, which is the reference's, fills the rest.

    arguments: those of `sample_tokens`, by name.
    """
    own = sample_tokens(**arguments)
    of = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    vocab_size = of["logits"].shape[1]
    allowed = allowed_tokens(vocab_size, of["banned_ids"], of["mask"], of["mask_row"], arguments["num_token_ids"])
    temperature = np.maximum(of["temperature"], 0)
    chain = keep_top_k(
        apply_temperature(mask_tokens(of["logits"], allowed), temperature), np.minimum(of["top_k"], vocab_size)
    )
    draws = (of["temperature"] > 0) & (own >= 0) & is_usable(chain)
    found = [[token] for token in own]
    for row in np.flatnonzero(draws):
        one = np.s_[row : row + 1]
        u = uniform(of["seed"][one], of["position"][one], of["sample_index"][one], vocab_size)[0]
        right = may_be_drawn(chain[row], u, float(of["top_p"][row]), float(of["min_p"][row]))
        found[row] += [token for token in right if token != own[row]]
    width = max((len(tokens) for tokens in found), default=1)
    return np.array([tokens + tokens[:1] * (width - len(tokens)) for tokens in found], np.int32).reshape(-1, width)


def may_be_drawn(
    logits: Array,  # f32 [V], after top-k; the largest is finite
    u: Array,  # f32 [V]: uniforms
    top_p: float,
    min_p: float,
) -> list[int]:
    """In no order."""
    surely, maybe = kept(logits, top_p, min_p)
    ids = np.flatnonzero(maybe)
    least, most = perturbed(logits[ids], u[ids])
    surely = surely[ids]
    # Who is the largest at its least is beaten by nobody who is smaller at its most; on a tie the lower id wins.
    best = least[surely].max()
    winner = ids[surely & (least == best)].min()
    can = (most > best) | ((most == best) & (ids <= winner))
    tokens = ids[can]
    # Tokens of one logit and one uniform are equal however that is rounded: the lowest id wins if it is kept.
    sure = set(ids[can & surely].tolist())
    first: dict[tuple[float, float], int] = {}
    for token in tokens.tolist():
        key = float(logits[token]), float(u[token])
        if token in sure and key not in first:
            first[key] = token
    return [token for token in tokens.tolist() if first.get((float(logits[token]), float(u[token])), token) >= token]


def kept(logits: Array, top_p: float, min_p: float) -> tuple[Array, Array]:  # bool [V], bool [V]
    """What top-p and min-p keep whatever the rounding is, and what they keep for some of it."""
    order = np.argsort(-logits, kind="stable")
    share = shares(logits, logits[order[0]])
    preceding = np.concatenate([[0.0], np.cumsum(share[order])[:-1]])
    total = share.sum()
    is_exact = np.isin(share, (0.0, 1.0))  # whose sums are too
    target = float(np.float32(top_p) * np.float32(total)) if is_exact.all() else top_p * total
    error = 0.0 if is_exact.all() else SUM * np.maximum(preceding, target)
    of_exp = np.where(is_exact, 0.0, EXP_ULPS * _ULP)
    found = []
    for sign in (-1, 1):
        in_nucleus = np.ones(logits.shape, bool)
        if top_p < 1:
            in_nucleus[order] = preceding - target < sign * error
        in_nucleus[order[0]] = True
        found.append(in_nucleus & (share >= min_p * (1 - sign * of_exp)) & np.isfinite(logits))
    return found[0], found[1]


def shares(logits: Array, largest: np.float32) -> Array:  # f64 [V]
    """Probabilities over the largest one, without rounding but for that of the distance, which every panel has, and
    for those nearer to 1 than float32 can tell, which are 1."""
    with np.errstate(invalid="ignore"):
        distance = np.where(np.isfinite(logits), logits - largest, -np.inf).astype(np.float64)
    share = np.exp(distance)
    return np.where(distance > -_ULP / 4, 1.0, share)


def perturbed(logits: Array, u: Array) -> tuple[Array, Array]:  # f32, f32
    """The least and the most that logits + noise can be."""
    inner = -np.log(u.astype(np.float64))
    noise = -np.log(inner)
    # A relative error of the inner logarithm is an absolute one of the outer.
    error = LOG_ULPS * (_ULP + np.spacing(np.abs(noise).astype(np.float32)))
    wide = logits.astype(np.float64)
    return (wide + (noise - error)).astype(np.float32), (wide + (noise + error)).astype(np.float32)
