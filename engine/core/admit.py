"""Which requests are taken, as `reference/serving/admit.py` says: nothing is accepted and then ignored."""

from __future__ import annotations

from collections.abc import Iterable

from reference.serving.request import Request, RequestError


def check_request(request: Request, *, max_model_len: int, num_token_ids: int, eos_token_ids: frozenset[int]) -> None:
    """Errors: RequestError that names the field, the value and what would be right."""
    params, length = request.params, len(request.prompt_token_ids)
    if length == 0:
        raise RequestError("prompt_token_ids", "the prompt is empty; it must hold at least one token")
    if length >= max_model_len:
        raise RequestError(
            "prompt_token_ids",
            f"the prompt has {length} tokens and the context is {max_model_len}: "
            f"with room for one token of output, it may have {max_model_len - 1}",
        )
    _check_ids("prompt_token_ids", request.prompt_token_ids, num_token_ids)
    _check_ids("logit_bias", params.logit_bias, num_token_ids)
    _check_ids("stop_token_ids", params.stop_token_ids, num_token_ids)
    if params.allowed_token_ids is None:
        return
    _check_ids("allowed_token_ids", params.allowed_token_ids, num_token_ids)
    if params.min_tokens > 0 and set(params.allowed_token_ids) <= eos_token_ids | set(params.stop_token_ids):
        raise RequestError(
            "allowed_token_ids",
            f"every allowed token ends the answer, and min_tokens {params.min_tokens} forbids that at first",
        )


def _check_ids(param: str, token_ids: Iterable[int], num_token_ids: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < num_token_ids:
            raise RequestError(param, f"{param}: there is no token {token_id}; ids are 0 to {num_token_ids - 1}")
