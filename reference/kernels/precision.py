"""The precision that the reference computes in, in one place.

The rounding contract of every kernel in this folder:

1. inputs are read in the dtype they come in (bfloat16, float16, float32, or an 8-bit format with a scale);
2. arithmetic is float32;
3. there is ONE rounding, to the dtype of the first input, at the end. A kernel that rounds anywhere else says so
   under "Rounding" in its docstring.

Step 2 is `wide`. It leaves float64 alone, so a kernel that is given float64 arrays never rounds to less: the same
text is then the *oracle* that errors are measured against. Only NumPy can be the oracle, because JAX makes float64
float32 unless told otherwise for the whole process.

float32 means float32 in products too. JAX does that on a CPU; on an accelerator it would use a narrower type unless
`jax_default_matmul_precision` is "highest".

The cast is written out because the two namespaces disagree without it: `bfloat16 array * 2.0` is float32 in NumPy
and bfloat16 in JAX.
"""

from __future__ import annotations

import numpy as np

from reference.formats import Array


def wide(x: Array) -> Array:
    """x in the dtype that arithmetic is done in: float32, but float64 stays float64. Any shape; exact."""
    if x.dtype == np.float64:
        return x
    xp = x.__array_namespace__()
    return xp.astype(x, xp.float32, copy=False)
