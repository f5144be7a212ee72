"""/tokenize and /detokenize: what the model reads, in vLLM's shapes."""

from __future__ import annotations

from typing import Any, ClassVar

from engine.api.body import check, parse, read_object
from engine.api.chat import prompt_of
from engine.api.logprobs import token_name
from engine.api.protocol import Conversation, TokenId
from engine.api.served import ServedModel
from engine.api.strict import Strict
from reference.serving.request import RequestError


class TokenizeRequest(Strict):
    """A text, as /v1/completions reads a prompt."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class TokenizeChatRequest(Conversation):
    """A conversation, as /v1/chat/completions reads it."""

    unsupported: ClassVar = {
        "add_special_tokens": (False,),  # the chat template writes them
        "chat_template": (),
        "continue_final_message": (False,),
        "mm_processor_kwargs": ({},),
    }

    model: str | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(Strict):
    """Token ids."""

    model: str | None = None
    tokens: list[TokenId]


def tokenize(served: ServedModel, raw: bytes) -> dict[str, Any]:
    """POST /tokenize: a text's or a conversation's ids, and with `return_token_strs` their names as log-probabilities
    give them. Errors: ApiError, RequestError."""
    fields = read_object(raw)
    body: TokenizeRequest | TokenizeChatRequest
    if fields.get("messages") is not None:
        if fields.get("prompt") is not None:
            raise RequestError("prompt", "prompt and messages are both given; give one")
        body = check(TokenizeChatRequest, fields)
        served.check_name(body.model)
        ids = prompt_of(served, body, add_generation_prompt=body.add_generation_prompt)
    else:
        body = check(TokenizeRequest, fields)
        served.check_name(body.model)
        ids = served.encode(body.prompt, "prompt", add_special=body.add_special_tokens)
    names = [token_name(served.tokenizer, token_id) for token_id in ids] if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": served.engine.max_model_len, "tokens": ids, "token_strs": names}


def detokenize(served: ServedModel, raw: bytes) -> dict[str, Any]:
    """POST /detokenize: the text of ids, special tokens shown. Errors: ApiError, RequestError."""
    body = parse(DetokenizeRequest, raw)
    served.check_name(body.model)
    highest = served.tokenizer.num_token_ids - 1
    for at, token_id in enumerate(body.tokens):
        if not 0 <= token_id <= highest:
            raise RequestError("tokens", f"tokens[{at}] is {token_id}; token ids of this model are 0 to {highest}")
    return {"prompt": served.tokenizer.decode(body.tokens, skip_special_tokens=False)}
