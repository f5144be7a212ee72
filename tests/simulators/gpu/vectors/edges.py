"""Edge values of each kind of operand, as bits, the most telling first (with many operands only those are combined)."""

from __future__ import annotations

import numpy as np

from tests.simulators.gpu.vectors.formats import FORMATS, Bits, Format, encode


def _integer_edges(bits: int) -> Bits:
    top = 2 ** (bits - 1)
    values = [0, 2 * top - 1, 1, top, top - 1, 2, 31, 3, 2 * top - 2, top + 1, 7, 8, 15, 16, 32, 33, 64, 63, 255, 128]
    values += [127, 256, 257, 2**15, 2**15 - 1, 2**16 - 1, 2 * top - 128, 2 * top - 129, 2 * top - 255, 10, 1000]
    if bits > 16:
        values += [2**16, 2**16 + 1, 2**24, 2**24 + 1, 2**24 + 2, 2**24 + 3, 2**25 + 2, 2**25 + 6, 65519, 65520]
        values += [2 * top - 2**15, 2 * top - 2**15 - 1, 2 * top - 2**24 - 1, 0x55555555, 0xAAAAAAAA, 0x12345678]
    if bits > 32:
        values += [2**31, 2**31 - 1, 2**32, 2**32 - 1, 2**32 + 1, 2**53, 2**53 + 1, 2**53 + 3, 2**54 + 2, 2**54 + 6]
        values += [2 * top - 2**31, 2 * top - 2**31 - 1, 2 * top - 2**32, 2 * top - 2**53 - 1, 2**40 + 2**16]
    return np.array(values, np.uint64)


def _float_edges(form: Format) -> Bits:
    sign, one_ulp = 1 << (form.bits - 1), 1
    infinity = (2**form.exponent - 1) << form.mantissa
    quiet = 1 << (form.mantissa - 1)
    least_normal, one = 1 << form.mantissa, form.bias << form.mantissa
    payload = quiet // 3 | 1
    bits = [0, infinity, sign | one, 1, infinity | quiet | payload, sign, sign | infinity, infinity - 1]
    bits += [infinity | payload, one, least_normal, sign | infinity | quiet | payload, least_normal - 1]
    bits += [
        sign | (infinity - 1),
        sign | least_normal,
        sign | 1,
        one + one_ulp,
        one - one_ulp,
        infinity | (2 * quiet - 1),
    ]
    bits += [infinity | quiet, sign | infinity | payload, sign | (least_normal - 1)]
    bits += [least_normal + 1, 2 * least_normal, 2, 3, sign | infinity | quiet, sign | infinity | 1]
    values = [0.5, 1.5, 2.5, 3.5, 0.25, 0.75, 2.0, 3.0, 100.0, 127.5, 128.5, 255.5, 256.0, 0.1, np.pi]
    values += [240.0, 432.0, 448.0, 464.0, 480.0, 2.0**-6, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 2.0**-14, 2.0**-16]
    values += [2.0**-17, 1.5 * 2.0**-17, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 32767.5, 32768.0, 57344.0, 61440.0]
    if form.exponent > 5:
        values += [65504.0, 65519.0, 65520.0, 65535.5, 2.0**16, 2.0**31, 2.0**32, 2.0**63, 2.0**64, 2.0**23, 2.0**24]
        values += [2.0**-126, 2.0**127, 1.5 * 2.0**-149, 2.0**-100]
    if form.mantissa > 23:
        values += [2.0**31 - 1, 2.0**31 - 0.5, 2.0**32 - 0.5, 2.0**53, 2.0**52 + 0.5, 2.0**128, 2.0**128 - 2.0**103]
        values += [2.0**-150, 1.5 * 2.0**-150, 2.0**-151, 2.0**128 - 2.0**104]
    positive = encode(form, np.array(values, np.float64))
    return np.concatenate([np.array(bits, np.uint64), np.stack([positive, positive | np.uint64(sign)], 1).ravel()])


EDGES = {f"{letter}{bits}": _integer_edges(bits) for letter in "us" for bits in (16, 32, 64)}
EDGES |= {name: _float_edges(form) for name, form in FORMATS.items()}
EDGES["amount"] = np.array(
    [0, 1, 31, 32, 33, 63, 64, 65, 0xFFFFFFFF, 8, 16, 255, 256, 0x80000000, 288, 15, 7], np.uint64
)
EDGES["pred"] = np.array([0, 1], np.uint64)
