"""Sampling on a GPU: from logits to tokens, however a row asks for them.

1. `sample_parts`: each row is read, part by part, and little is left of each part.
2. `sample_choice`: the parts of each row are put together. Greedy rows, those with a top-k up to FEW, and those
   without top-k and top-p have their tokens then; and any of which the first token of all was drawn.
3. `sample_masses`, where rows may have top-p or a larger top-k: they are read again, to tell what comes before the
   tokens that were drawn without regard to these limits.
4. `sample_search`: the first of them that the limits keep. Where they keep none, a row is looked at until one is found.

Where no row draws, each is read by one kernel, which keeps nothing (`greedy_tokens`).

What is done with a row, and in which order anything is added up, never depends on other rows or on how many there are:
a row's token is the same alone and in any company.

Rounding: what is compared is rounded as in the reference (penalised logits, quotients by the temperature, perturbed
logits); sums of probabilities are added up in another order, and the noise's logarithms err by an ULP. So a draw within
a few ULPs of a tie, or of where top-p or min-p ends, may be another than the reference's.
"""

from __future__ import annotations

import operator

from optimized.arguments import FLOAT32, INT32, UINT32, output, require, sizes_of
from optimized.device import Tensor, device_of
from optimized.kernels.forbidden import check_forbidden
from optimized.kernels.greedy_tokens import GreedyTokens
from optimized.kernels.row_cluster import check_length
from optimized.kernels.rows import common_vector
from optimized.kernels.sample_before import SUMS
from optimized.kernels.sample_choice import SampleChoice
from optimized.kernels.sample_heads import CHOICE, LENGTH
from optimized.kernels.sample_masses import SampleMasses
from optimized.kernels.sample_parts import ALL_DRAWN, ANY_KEPT, FEW_KEPT, SampleParts
from optimized.kernels.sample_search import SampleSearch

LIMITS = {"none": ALL_DRAWN, "few": FEW_KEPT, "any": ANY_KEPT}


def sample_tokens(
    logits: Tensor,  # f32 [R, V], rows contiguous
    temperature: Tensor,  # f32 [R]: 0 is greedy; below 0, the row does not sample
    top_k: Tensor,  # i32 [R]; 0 keeps all
    top_p: Tensor,  # f32 [R], (0, 1]; 1 keeps all
    min_p: Tensor,  # f32 [R], [0, 1]; 0 keeps all
    seed: Tensor,  # u32 [R, 2], low word and high word of the 64-bit seed
    position: Tensor,  # i32 [R], where the drawn token will stand
    sample_index: Tensor,  # i32 [R]
    banned_ids: Tensor,  # i32 [R, N], -1 pads: never sampled
    mask: Tensor,  # u32 [M, W]: allowed ids, 32 a word, the lowest in the lowest bit; those beyond it are not
    mask_row: Tensor,  # i32 [R]: which row of `mask`; -1 allows all
    turned: Tensor,  # i32 [R, 2] of `adjust_logits`; [R, 0]: nothing was adjusted
    *,
    num_token_ids: int,  # ids from here on are padding of the vocabulary, and never sampled
    draws: bool = True,
    limits: str = "any",
    out: Tensor | None = None,
) -> Tensor:  # i32 [R]: `out`, or new memory
    """One token a row, or UNUSABLE_LOGITS, NOTHING_ALLOWED or NOT_SAMPLED.

    draws, limits: what the caller knows of all rows, so that less is launched and looked at. They must hold; a row of
    which they do not is sampled as if it had asked for less. draws: is any temperature above 0? limits, of the rows
    that draw: "none" has top-k or top-p; those that do have a top-k of at most FEW ("few"); or "any".

    Errors: ValueError, TypeError for tensors that do not fit, for other limits, and for rows that are too long.
    """
    device = device_of(logits)
    num_rows, row_length = sizes_of("sample_tokens", "logits", logits, ("R", "V"), FLOAT32)
    if limits not in LIMITS:
        raise ValueError(f"sample_tokens: limits is {limits!r}; it must be one of {', '.join(LIMITS)}")
    check_length("sample_tokens", row_length)
    if not 1 <= num_token_ids <= row_length:
        raise ValueError(f"sample_tokens: num_token_ids is {num_token_ids}; it must be 1 to {row_length}")
    floats = {"temperature": temperature, "top_p": top_p, "min_p": min_p}
    integers = {"top_k": top_k, "position": position, "sample_index": sample_index}
    for dtypes, tensors in ((FLOAT32, floats), (INT32, integers)):
        for name, tensor in tensors.items():
            require("sample_tokens", name, tensor, (num_rows,), dtypes)
    require("sample_tokens", "seed", seed, (num_rows, 2), UINT32)
    forbids = check_forbidden("sample_tokens", num_rows, banned_ids, mask, mask_row)
    adjusted = tuple(turned.shape[1:]) != (0,)
    require("sample_tokens", "turned", turned, (num_rows, 2 if adjusted else 0), INT32)
    out = output("sample_tokens", "out", out, device, (num_rows,), "int32")
    if num_rows == 0:
        return out
    vector, number = common_vector(device.arch, row_length, logits), operator.index(num_token_ids)
    forbidden = banned_ids, mask, mask_row
    if not draws:
        greedy = GreedyTokens(row_length, vector, forbids, adjusted)
        device.run(greedy, logits, temperature, *forbidden, turned, number, out)
        return out
    parts = SampleParts(row_length, vector)
    noise = seed, position, sample_index
    settings = temperature, top_k, top_p, min_p, *noise
    heads = device.empty((num_rows, parts.parts, LENGTH), "int64")
    choice = device.empty((num_rows, CHOICE), "int32")
    asked = number, LIMITS[limits]
    device.run(parts, logits, temperature, top_k, min_p, *noise, *forbidden, *asked, heads)
    choose = SampleChoice(row_length, vector)
    device.run(choose, logits, *settings, *forbidden, turned, *asked, heads, choice, out)
    if limits == "any":
        sums = device.empty((num_rows, parts.parts * SUMS), "float32")
        device.run(SampleMasses(row_length, vector), logits, temperature, top_p, *forbidden, number, choice, sums)
        device.run(SampleSearch(row_length, vector), logits, *settings, *forbidden, number, choice, sums, out)
    return out
