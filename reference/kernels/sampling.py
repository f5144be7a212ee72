"""The chain that turns logits into a token: penalties, bias, mask, temperature, top-k, top-p, min-p, the draw.

Each stage takes and gives logits f32 [R, V], one row a request; a token that a stage rules out gets -inf, and stages
leave -inf where it is. So whatever comes first has already renormalised the distribution that the next stage sees.
The falling order of a row is by logit, the lower id first on a tie.

A row is usable if its largest logit is finite. NaN passes through every stage; `draw` gives -1 for a row that has one.
Nothing is rounded but to float32 after each operation.
"""

from __future__ import annotations

from array_api_extra import at

from reference.formats import Array
from reference.kernels.philox import gumbel
from reference.kernels.precision import wide

# Settings outside these count as the nearest inside: no logit of a working model then overflows, nor does a reciprocal
# (by which XLA may multiply instead of dividing) vanish, and make NaN of -inf.
LOWEST_TEMPERATURE = 1e-6  # of those above 0
LARGEST_TEMPERATURE = 2.0**64
LARGEST_REPETITION = 2.0**64  # and its reciprocal is the smallest


def penalize(
    logits: Array,  # f32 [R, V]
    prompt_mask: Array,  # bool [R, V], ids that the prompt holds
    output_counts: Array,  # i32 [R, V], how often each id has been sampled
    *,
    repetition: Array,  # f32 [R], > 0; 1 does nothing
    presence: Array,  # f32 [R]; 0 does nothing
    frequency: Array,  # f32 [R]; 0 does nothing
) -> Array:  # f32 [R, V]
    """Make tokens that occurred less likely (or, with negative penalties, more).

    Repetition, over prompt and output, once however often a token occurred: l / r where l > 0, else l * r (CTRL,
    Keskar et al., arXiv:1909.05858, with the sign handled as transformers `RepetitionPenaltyLogitsProcessor` does).
    Then, over the output alone: l - frequency * count - presence * [count > 0] (the OpenAI API reference).
    """
    xp = logits.__array_namespace__()
    logits = wide(logits)
    repetition = xp.clip(wide(repetition), 1 / LARGEST_REPETITION, LARGEST_REPETITION)[:, None]
    occurred = prompt_mask | (output_counts > 0)
    repeated = xp.where(logits > 0, logits / repetition, logits * repetition)
    logits = xp.where(occurred, repeated, logits)
    counts = xp.astype(output_counts, logits.dtype)
    sampled = xp.astype(output_counts > 0, logits.dtype)
    return logits - wide(frequency)[:, None] * counts - wide(presence)[:, None] * sampled


def add_logit_bias(
    logits: Array,  # f32 [R, V]
    token_ids: Array,  # i32 [R, B], -1 pads; the others of a row are distinct
    bias: Array,  # f32 [R, B]
) -> Array:  # f32 [R, V]
    """logits[r, token_ids[r, b]] + bias[r, b] (the OpenAI API reference). What is -inf stays so."""
    xp = logits.__array_namespace__()
    rows, vocab_size = logits.shape
    # Padding writes to a column of its own, which is then cut off.
    columns = xp.where(token_ids < 0, vocab_size, token_ids)
    dense = xp.zeros((rows, vocab_size + 1), dtype=wide(bias).dtype)
    dense = at(dense, (xp.arange(rows)[:, None], columns)).set(wide(bias))
    return wide(logits) + dense[:, :vocab_size]


def mask_tokens(
    logits: Array,  # f32 [R, V]
    allowed: Array,  # bool [R, V]
) -> Array:  # f32 [R, V]
    """-inf for every token that is not allowed."""
    return _keep(wide(logits), allowed)


def apply_temperature(
    logits: Array,  # f32 [R, V]
    temperature: Array,  # f32 [R], >= 0
) -> Array:  # f32 [R, V]
    """logits / temperature, within the limits above. Rows of temperature 0 (greedy) are left alone."""
    xp = logits.__array_namespace__()
    temperature = wide(temperature)
    divisor = xp.where(temperature == 0, 1.0, xp.clip(temperature, LOWEST_TEMPERATURE, LARGEST_TEMPERATURE))
    return wide(logits) / divisor[:, None]


def keep_top_k(
    logits: Array,  # f32 [R, V]
    k: Array,  # i32 [R]; 0 keeps all
) -> Array:  # f32 [R, V]
    """The first k of the falling order: exactly k, whatever the ties (Fan et al., arXiv:1805.04833)."""
    logits = wide(logits)
    place = _places(_falling_order(logits))
    return _keep(logits, (place < k[:, None]) | (k[:, None] == 0))


def keep_top_p(
    logits: Array,  # f32 [R, V]
    p: Array,  # f32 [R], (0, 1]; 1 keeps all
) -> Array:  # f32 [R, V]
    """The nucleus: the shortest prefix of the falling order whose probability is at least p (Holtzman et al.,
    arXiv:1904.09751).

    The distribution is the softmax of what is left, so after top-k it is renormalised. A token stays if the sum of all
    that precede it is below p; the first always does. Sums are float32, in any order: where one comes within a few
    2^-24 of p, two panels may differ by the token there.
    """
    xp = logits.__array_namespace__()
    logits, p = wide(logits), wide(p)[:, None]
    order = _falling_order(logits)
    share = xp.take_along_axis(_shares(logits), order, axis=-1)  # proportional to the probability
    total = xp.sum(share, axis=-1, keepdims=True)
    preceding = xp.cumulative_sum(share, axis=-1, include_initial=True)[:, :-1]
    place = _places(order)
    kept = xp.take_along_axis(preceding < p * total, place, axis=-1)
    return _keep(logits, kept | (place == 0) | (p >= 1))  # the first stays even where p * total is 0 in float32


def keep_min_p(
    logits: Array,  # f32 [R, V]
    p: Array,  # f32 [R], [0, 1]; 0 keeps all
) -> Array:  # f32 [R, V]
    """Tokens with at least p times the likeliest token's probability (Nguyen et al., arXiv:2407.01082)."""
    logits = wide(logits)
    return _keep(logits, _shares(logits) >= wide(p)[:, None])


def is_usable(
    logits: Array,  # f32 [R, V]
) -> Array:  # bool [R]
    """Is the largest logit finite: no NaN, no +inf, and not -inf alone?"""
    xp = logits.__array_namespace__()
    # XLA's max on a CPU passes over NaN in some shapes, and over infinity in none.
    return xp.isfinite(xp.max(xp.where(xp.isnan(logits), xp.inf, logits), axis=-1))


def greedy(
    logits: Array,  # f32 [R, V], after the chain
) -> Array:  # i32 [R]
    """The token of the largest logit: `draw` at temperature 0, without the noise. An unusable row gives -1."""
    xp = logits.__array_namespace__()
    return xp.astype(xp.where(is_usable(logits), xp.argmax(logits, axis=-1), -1), xp.int32)


def perturb(
    logits: Array,  # f32 [R, V], after the chain
    temperature: Array,  # f32 [R], already applied; only whether it is 0 matters here
    seed: Array,  # u32 [R, 2], low word and high word of the 64-bit seed
    position: Array,  # i32 [R], where the drawn token will stand
    sample_index: Array,  # i32 [R]
) -> Array:  # f32 [R, V]
    """logits + gumbel, of which the largest is a draw from softmax(logits); greedy rows are left alone.

    Source: the Gumbel-max trick, Maddison et al., arXiv:1411.0030.
    """
    xp = logits.__array_namespace__()
    logits = wide(logits)
    noise = gumbel(seed, position, sample_index, logits.shape[1])
    return xp.where((temperature == 0)[:, None], logits, logits + noise)


def draw(
    logits: Array,  # f32 [R, V], after the chain
    temperature: Array,  # f32 [R], already applied; only whether it is 0 matters here
    seed: Array,  # u32 [R, 2], low word and high word of the 64-bit seed
    position: Array,  # i32 [R], where the drawn token will stand
    sample_index: Array,  # i32 [R]
) -> Array:  # i32 [R]
    """One token a row: argmax(logits) at temperature 0, else argmax(logits + gumbel), a draw from softmax(logits).

    The lower id wins a tie. A row whose largest logit is not finite (NaN, +inf, or -inf: nothing is allowed) gives -1.
    """
    return greedy(perturb(logits, temperature, seed, position, sample_index))


def _keep(logits: Array, kept: Array) -> Array:
    xp = logits.__array_namespace__()
    return xp.where(kept | xp.isnan(logits), logits, -xp.inf)


def _falling_order(logits: Array) -> Array:
    """Ids of each row from the largest logit to the smallest, NaN last, the lower id first on a tie."""
    xp = logits.__array_namespace__()
    return xp.argsort(-logits, axis=-1, stable=True)


def _places(order: Array) -> Array:
    """Where each id stands in the order: the inverse permutation."""
    xp = order.__array_namespace__()
    return xp.argsort(order, axis=-1, stable=True)


def _shares(logits: Array) -> Array:
    """Probabilities over the largest one: exp(l - max). A row of -inf alone gives 0."""
    xp = logits.__array_namespace__()
    largest = xp.max(logits, axis=-1, keepdims=True)
    return xp.exp(logits - xp.where(xp.isfinite(largest), largest, 0.0))
