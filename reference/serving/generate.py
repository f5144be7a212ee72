"""One sample of one request, from its first token to its last. The whole sequence is computed anew for each token."""

from __future__ import annotations

from collections.abc import Iterator

from reference.serving.log_probs import log_probs_at, prompt_log_probs
from reference.serving.request import FinishReason, Request, RequestOutput
from reference.serving.sample import sample_token
from reference.serving.served_model import ServedModel
from reference.serving.stop import ending, text_to_show
from reference.serving.usable import UnusableLogits


def generate(request: Request, sample_index: int, served: ServedModel) -> Iterator[RequestOutput]:
    """One output a token. The last one, and no other, has a finish reason.

    Logits that are not usable end the sample with `error`: an output of no token, with the text that was held back.
    """
    prompt, params = request.prompt_token_ids, request.params
    context_left = served.max_model_len - len(prompt)
    budget = context_left if params.max_tokens is None else min(params.max_tokens, context_left)
    output: list[int] = []
    shown = ""
    while True:
        logits = served.model.last_logits((*prompt, *output))
        about_prompt = None
        try:
            if params.prompt_logprobs is not None and not output:
                about_prompt = prompt_log_probs(served.model.all_logits(prompt), prompt, params.prompt_logprobs)
            token_id = sample_token(
                logits,
                prompt,
                output,
                params,
                sample_index=sample_index,
                banned_token_ids=banned_token_ids(request, len(output), logits.shape[0], served),
            )
        except UnusableLogits as error:
            yield RequestOutput(
                request.request_id,
                sample_index,
                token_ids=(),
                text=served.decode(output, params.skip_special_tokens).removeprefix(shown),
                logprobs=None if params.logprobs is None else (),
                finish_reason=FinishReason.ERROR,
                error=str(error),
            )
            return
        output.append(token_id)
        end = ending(output, params, decode=served.decode, eos_token_ids=served.eos_token_ids, budget=budget)
        text = text_to_show(output, params, served.decode) if end is None else end.text
        yield RequestOutput(
            request.request_id,
            sample_index,
            token_ids=(token_id,),
            text=text.removeprefix(shown),
            logprobs=None if params.logprobs is None else (log_probs_at(logits, token_id, params.logprobs),),
            prompt_logprobs=about_prompt,
            finish_reason=None if end is None else end.finish_reason,
            stop_reason=None if end is None else end.stop_reason,
        )
        if end is not None:
            return
        shown = text


def banned_token_ids(request: Request, num_output: int, vocab_size: int, served: ServedModel) -> set[int]:
    """The padding of the vocabulary; and before `min_tokens`, what would end the sample (`ignore_eos` or not)."""
    banned = set(range(served.num_token_ids, vocab_size))
    if num_output < request.params.min_tokens:
        banned |= served.eos_token_ids | set(request.params.stop_token_ids)
    return banned
