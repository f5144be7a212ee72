"""Which requests are taken. What the request alone can tell is checked where `SamplingParams` is built; this page
checks it against the model. Nothing is accepted and then ignored."""

from __future__ import annotations

from collections.abc import Iterable

from reference.serving.request import Request, RequestError
from reference.serving.served_model import ServedModel


def check_request(request: Request, served: ServedModel) -> None:
    """Errors: RequestError that names the field, the value and what would be right."""
    params, length = request.params, len(request.prompt_token_ids)
    if length == 0:
        raise RequestError("prompt_token_ids", "the prompt is empty; it must hold at least one token")
    if length >= served.max_model_len:
        raise RequestError(
            "prompt_token_ids",
            f"the prompt has {length} tokens and the context is {served.max_model_len}: "
            f"with room for one token of output, it may have {served.max_model_len - 1}",
        )
    _check_ids("prompt_token_ids", request.prompt_token_ids, served)
    _check_ids("logit_bias", params.logit_bias, served)
    _check_ids("stop_token_ids", params.stop_token_ids, served)
    if params.allowed_token_ids is None:
        return
    _check_ids("allowed_token_ids", params.allowed_token_ids, served)
    if params.min_tokens > 0 and set(params.allowed_token_ids) <= served.eos_token_ids | set(params.stop_token_ids):
        raise RequestError(
            "allowed_token_ids",
            f"every allowed token ends the answer, and min_tokens {params.min_tokens} forbids that at first",
        )


def _check_ids(param: str, token_ids: Iterable[int], served: ServedModel) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < served.num_token_ids:
            raise RequestError(param, f"{param}: there is no token {token_id}; ids are 0 to {served.num_token_ids - 1}")
