"""/health: does the server take requests, and, when asked, does it really generate?"""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import aclosing

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from engine.api.errors import bad_parameter
from engine.api.served import ServedModel
from engine.loop import EngineError, EngineStopped
from reference.serving.request import MAX_PRIORITY, FinishReason, Request, RequestError, SamplingParams

HEALTH_SECONDS = 30.0


class Health:
    """The endpoint. seconds: how long the generation of a token may take."""

    def __init__(self, served: ServedModel, seconds: float = HEALTH_SECONDS) -> None:
        self._served, self._seconds = served, seconds
        self._probe: asyncio.Task[str | None] | None = None

    async def check(self, http: HttpRequest) -> Response:
        """GET /health: 200 while requests are taken, else 503. With ?generate=1 one token is generated first.

        Errors: ApiError 400 for any other parameter.
        """
        if not self._generates(http):
            alive = self._served.engine.alive
            return JSONResponse({"status": "ok" if alive else "stopping"}, 200 if alive else 503)
        begun = time.monotonic()
        failure = await self._generated()
        seconds = round(time.monotonic() - begun, 6)
        if failure is None:
            return JSONResponse({"status": "ok", "seconds": seconds})
        return JSONResponse({"status": "failed", "seconds": seconds, "reason": failure}, 503)

    @staticmethod
    def _generates(http: HttpRequest) -> bool:
        asked = http.query_params.multi_items()
        for name, _ in asked:
            if name != "generate":
                raise bad_parameter(name, f"unknown parameter {name!r}; /health knows generate")
        if asked and asked not in ([("generate", "0")], [("generate", "1")]):
            raise bad_parameter("generate", "generate must be given once, as 0 or 1")
        return asked == [("generate", "1")]

    async def _generated(self) -> str | None:
        """Why no token could be generated, or None. All who ask while a token is on its way wait for that one, so that
        however many probes there are, they cost one request at a time."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._generate())
        return await asyncio.shield(self._probe)

    async def _generate(self) -> str | None:
        prompt = self._served.tokenizer.encode("a")[:1]
        params = SamplingParams(temperature=0.0, max_tokens=1)
        # The most urgent priority: under load the question is whether the engine works, not how long the queue is.
        request = Request(f"health-{uuid.uuid4().hex}", tuple(prompt), params, priority=-MAX_PRIORITY)
        try:
            async with asyncio.timeout(self._seconds), aclosing(self._served.engine.generate(request)) as outputs:
                async for output in outputs:
                    if output.finish_reason is FinishReason.ERROR:
                        return output.error or "the engine failed"
        except TimeoutError:
            return f"no token within {self._seconds:g} seconds"
        except (RequestError, EngineError, EngineStopped) as error:
            return str(error)
        return None
