"""What logits must be for a token to be drawn from them or judged by them."""

from __future__ import annotations

from reference.formats import Array
from reference.kernels.sampling import is_usable
from reference.serving.request import UNUSABLE_LOGITS_ERROR


class UnusableLogits(ValueError):
    """Ends the one sample it happens in, with `FinishReason.ERROR` and this message."""


def require_usable(
    logits: Array,  # f32 [V], as the model gave them
    position: int,  # of the token they are about
) -> None:
    """Errors: UnusableLogits if they define no distribution: NaN or +inf among them, or nothing but -inf."""
    if not is_usable(logits[None, :])[0]:
        raise UnusableLogits(UNUSABLE_LOGITS_ERROR.format(position=position))
