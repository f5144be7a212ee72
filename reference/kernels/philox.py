"""Random numbers as a function of what they are for: Philox4x32-10, uniforms, and Gumbel noise for sampling.

    words   = philox_4x32(counter = (position, id // 4, sample index, 0), key = seed)
    u[id]   = ((words[id % 4] >> 9) + 0.5) * 2^-23
    g[id]   = -log(-log(u[id]))

There is no state: the noise of a token depends on the request's seed, the position, the sample and the token id alone.
So a request gives the same draw in any batch, on any panel, and after any preemption.

`position` is the index in the sequence (prompt included) at which the drawn token will stand: the first token after a
prompt of P tokens is drawn at position P.

Only 32-bit integers are used: JAX turns 64-bit ones into 32-bit ones unless told otherwise for the whole process.
Sources: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, and its library Random123; Gumbel's
trick: Maddison et al., arXiv:1411.0030.
"""

from __future__ import annotations

from reference.formats import Array

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
# What is added to the key between rounds: the golden ratio's and sqrt(3) - 1's first 32 bits.
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)

Words4 = tuple[Array, Array, Array, Array]


def philox_4x32(
    counter: Words4,  # u32, shapes that broadcast, of one dimension or more
    key: tuple[Array, Array],  # u32, low word and high word
) -> Words4:  # u32
    """Four random words for each counter and key: ten rounds of Philox. Exact on every machine."""
    xp = key[0].__array_namespace__()
    c0, c1, c2, c3 = counter
    k0, k1 = key
    steps = [xp.asarray(step, dtype=xp.uint32) for step in KEY_STEPS]
    for _ in range(ROUNDS):
        high0, low0 = _multiply_32x32(MULTIPLIERS[0], c0)
        high1, low1 = _multiply_32x32(MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + steps[0], k1 + steps[1]  # modulo 2^32
    return c0, c1, c2, c3


def _multiply_32x32(a: int, b: Array) -> tuple[Array, Array]:
    """The high and the low word of a * b, from products of halves, none of which overflows 32 bits.

    a b = hh 2^32 + (hl + lh) 2^16 + ll
    """
    a_high, a_low = a >> 16, a & 0xFFFF
    b_high, b_low = b >> 16, b & 0xFFFF
    ll, lh, hl, hh = a_low * b_low, a_low * b_high, a_high * b_low, a_high * b_high
    middle = (ll >> 16) + (lh & 0xFFFF) + (hl & 0xFFFF)
    return hh + (lh >> 16) + (hl >> 16) + (middle >> 16), (middle << 16) | (ll & 0xFFFF)


def uniform(
    seed: Array,  # u32 [R, 2], low word and high word of the 64-bit seed
    position: Array,  # i32 [R]
    sample_index: Array,  # i32 [R]
    vocab_size: int,
) -> Array:  # f32 [R, V]
    """A number in (0, 1) for each token id.

    The 2^23 values are the odd multiples of 2^-24: each is exact in float32, none is 0 or 1, and they lie
    symmetrically about 1/2.
    """
    xp = seed.__array_namespace__()
    group = xp.arange(-(-vocab_size // 4), dtype=xp.uint32)[None, :]  # id // 4
    counter = (
        xp.astype(position, xp.uint32)[:, None],
        group,
        xp.astype(sample_index, xp.uint32)[:, None],
        xp.zeros_like(group),
    )
    words = philox_4x32(counter, (seed[:, 0, None], seed[:, 1, None]))
    # To stack the words and reshape would be shorter, but XLA needs minutes to compile it.
    first, second, third, fourth = (xp.repeat(word, 4, axis=1)[:, :vocab_size] for word in words)
    which = xp.arange(vocab_size) % 4
    word = xp.where(which < 2, xp.where(which == 0, first, second), xp.where(which == 2, third, fourth))
    return (xp.astype(word >> 9, xp.float32) + 0.5) * 2.0**-23


def gumbel(
    seed: Array,  # u32 [R, 2], low word and high word of the 64-bit seed
    position: Array,  # i32 [R]
    sample_index: Array,  # i32 [R]
    vocab_size: int,
) -> Array:  # f32 [R, V]
    """Standard Gumbel noise: argmax(logits + noise) is a draw from softmax(logits).

    The noise lies in [-2.82, 16.64], the values at u = 2^-24 and 1 - 2^-24. So a token whose logit is more than 19.45
    under the largest is never drawn; its probability is under 4e-9. Both logarithms are float32.
    """
    u = uniform(seed, position, sample_index, vocab_size)
    xp = u.__array_namespace__()
    return -xp.log(-xp.log(u))
