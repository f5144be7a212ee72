"""What logits must be for a token to be drawn from them or judged by them."""

from __future__ import annotations

import numpy as np

from reference.formats import Array


class UnusableLogits(ValueError):
    """Ends the one sample it happens in, with `FinishReason.ERROR` and this message."""


def require_usable(
    logits: Array,  # f32 [V], as the model gave them
    position: int,  # of the token they are about
) -> None:
    """Errors: UnusableLogits if they define no distribution: NaN or +inf among them, or nothing but -inf."""
    if not np.isfinite(np.max(logits)):
        raise UnusableLogits(
            f"the model's logits for the token at position {position} hold NaN or +inf, or nothing but -inf"
        )
