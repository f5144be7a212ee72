"""The API under requests made from its own description: no 500, and every response as described.

What fits a schema may be refused (see engine/api/openapi.py); what does not fit must be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import FailureGroup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.api.app import create_app
from tests.engine.fakes import served_model
from tests.engine.serving import serving

load_all_checks()
MAY_BE_REFUSED = schemathesis.checks.CHECKS.get_one("positive_data_acceptance")


def small_app(text_side: Path) -> Starlette:
    """One that a request cannot keep busy for long."""
    return create_app(served_model(text_side, max_model_len=60), max_requests=8)


def fuzz(app: Starlette, max_examples: int, paths: str = "") -> Counter[int]:
    """Try every operation with that many requests that fit its schema, and as many that do not; how often each status
    came back. Errors: FailureGroup."""
    seen: Counter[int] = Counter()

    def trying(strategy: Any, url: str) -> Callable[[], None]:
        @settings(
            max_examples=max_examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def one(case: schemathesis.Case) -> None:
            response = case.call(base_url=url, timeout=20)
            seen[response.status_code] += 1
            case.validate_response(response, excluded_checks=[MAY_BE_REFUSED])

        return one

    with serving(app) as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=SchemathesisConfig())
        for operation in (found.ok() for found in schema.get_all_operations()):
            if not operation.path.startswith(paths):
                continue
            trying(operation.as_strategy(generation_mode=GenerationMode.POSITIVE), url)()
            if operation.body or operation.query:  # else there is nothing that could be wrong
                trying(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE), url)()
    return seen


def test_the_api_keeps_to_its_description(text_side: Path) -> None:
    seen = fuzz(small_app(text_side), 5)
    assert seen[200] > 3
    assert seen[400] > 15


@pytest.mark.slow
def test_the_api_keeps_to_its_description_in_many_more(text_side: Path) -> None:
    fuzz(small_app(text_side), 150)


def planted(text_side: Path, endpoint: Callable[[Request], Any], path: str = "/planted") -> Starlette:
    """An application with one more route, described as /version is."""
    app = small_app(text_side)
    app.router.routes.insert(0, Route(path, endpoint))
    app.state.description["paths"][path] = app.state.description["paths"]["/version"]
    return app


def test_a_route_that_crashes_is_found(text_side: Path) -> None:
    async def crash(_: Request) -> Response:
        raise ZeroDivisionError

    with pytest.raises(FailureGroup, match="Server error"):
        fuzz(planted(text_side, crash), 1, "/planted")


def test_an_answer_that_is_not_as_described_is_found(text_side: Path) -> None:
    async def answer(_: Request) -> Response:
        return JSONResponse({"version": 5})

    with pytest.raises(FailureGroup, match="violates schema"):
        fuzz(planted(text_side, answer), 1, "/planted")


def test_a_status_that_is_not_described_is_found(text_side: Path) -> None:
    async def answer(_: Request) -> Response:
        return JSONResponse({"version": "5"}, 201)

    with pytest.raises(FailureGroup, match="Undocumented status code"):
        fuzz(planted(text_side, answer), 1, "/planted")
