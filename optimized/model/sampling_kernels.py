"""Which kernels choose a step's tokens: every way, since requests decide which are needed."""

from __future__ import annotations

from optimized.device import CompileOnly, Outline
from optimized.kernels.adjust_logits import adjust_logits
from optimized.kernels.sample_tokens import sample_tokens
from optimized.kernels.token_log_probs import token_log_probs

NUM_TOP = (0, 20)  # likeliest tokens beside the chosen one


def launch_sampling(vocab_size: int, device: CompileOnly, num_rows: int) -> None:
    """With and without penalties, and with and without what forbids tokens, on outlines."""

    def tensor(of: str, *shape: int) -> Outline:
        return Outline(shape, of, device)

    logits = tensor("float32", num_rows, vocab_size)
    floats, integers = tensor("float32", num_rows), tensor("int32", num_rows)
    nothing, starts = tensor("int32", num_rows, 0), tensor("int32", num_rows + 1)
    penalties = floats, floats, floats, nothing, tensor("float32", num_rows, 0)
    _, turned = adjust_logits(logits, tensor("int32", 1), starts, integers, *penalties)
    settings = floats, integers, floats, floats, tensor("uint32", num_rows, 2), integers, integers
    for num_masks in (0, 1):
        mask = tensor("uint32", num_masks, -(-vocab_size // 32))
        for of_penalties in (nothing, turned):
            of_rows = logits, *settings, nothing, mask, integers, of_penalties
            sample_tokens(*of_rows, num_token_ids=vocab_size, draws=False)
            sample_tokens(*of_rows, num_token_ids=vocab_size)
    for num_top in NUM_TOP:
        token_log_probs(logits, integers, num_top)
