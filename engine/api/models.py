"""/v1/models: the model that is served."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.api.served import ServedModel


def describe(served: ServedModel) -> dict[str, Any]:
    """OpenAI's model object, and the context length beside it as vLLM does."""
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "diptych",
        "max_model_len": served.engine.max_model_len,
    }


async def list_models(request: Request) -> Response:
    """GET /v1/models."""
    return JSONResponse({"object": "list", "data": [describe(request.app.state.served)]})


async def retrieve_model(request: Request) -> Response:
    """GET /v1/models/NAME. Errors: ApiError 404."""
    served = request.app.state.served
    served.check_name(request.path_params["name"])
    return JSONResponse(describe(served))
