"""The routes. Everything but the texts' way through the model happens here."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from slm_runtime.errors import SlmError
from slm_runtime.serve.body import BodyReader
from slm_runtime.serve.classify_body import classify_tickets
from slm_runtime.serve.docs_page import docs_page
from slm_runtime.serve.observe import Observed
from slm_runtime.serve.openapi import openapi_document
from slm_runtime.serve.problems import CLIENT_GONE, CODES, ClientGoneError, RequestError, bad_field, problem_response
from slm_runtime.serve.service import Service
from slm_runtime.serve.systemone import answered, parse_asked
from slm_runtime.serve.worker import Phase

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
DOCS_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}


class Routes:
    """The handlers of one service."""

    def __init__(self, service: Service, *, secured: bool) -> None:
        self._service = service
        self._bodies = BodyReader(service.settings.max_body_bytes)
        self._document = openapi_document(service.settings, secured=secured)
        self._page = docs_page(self._document)

    async def classify(self, request: Request) -> Response:
        expires = asyncio.get_running_loop().time() + self._service.settings.deadline_s
        with self._bodies.holding() as body:
            tickets = classify_tickets(await body.json(request, expires), self._service.settings.max_texts)
            request.state.num_texts = len(tickets)
            (predictions,) = await self._service.predict([(self._service.task, tickets)], _gone(request), expires)
        return JSONResponse({"results": [prediction.to_record() for prediction in predictions]})

    async def systemone(self, request: Request) -> Response:
        expires = asyncio.get_running_loop().time() + self._service.settings.deadline_s
        with self._bodies.holding() as body:
            asked = parse_asked(await body.json(request, expires))
            request.state.num_texts = len(asked.questions)
            try:
                found = await self._service.predict(asked.calls(), _gone(request), expires)
            except SlmError as error:
                raise bad_field(str(error)) from error
        return JSONResponse(answered(asked, [prediction for (prediction,) in found], self._service.model))

    async def healthz(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        phase = self._service.phase
        return JSONResponse({"status": phase.value}, 200 if phase is Phase.READY else 503)

    async def metrics(self, _: Request) -> Response:
        return Response(self._service.metrics.exposition(), media_type=METRICS_TYPE)

    async def openapi(self, _: Request) -> Response:
        return JSONResponse(self._document)

    async def docs(self, _: Request) -> Response:
        return HTMLResponse(self._page, headers=DOCS_HEADERS)


def build_app(service: Service, *, token: bytes | None, log: bool) -> Observed:
    """The ASGI application of `service`."""
    routes = Routes(service, secured=token is not None)
    table = [
        Route("/v1/classify", routes.classify, methods=["POST"]),
        Route("/v1/systemone", routes.systemone, methods=["POST"]),
        Route("/healthz", routes.healthz),
        Route("/readyz", routes.readyz),
        Route("/metrics", routes.metrics),
        Route("/openapi.json", routes.openapi),
        Route("/docs", routes.docs),
    ]
    app = Starlette(
        routes=table,
        exception_handlers={
            RequestError: _problem,
            HTTPException: _http_problem,
            ClientGoneError: _client_gone,
            Exception: _internal_error,
        },
    )
    app.router.redirect_slashes = False
    return Observed(app, service.metrics, frozenset(route.path for route in table), token=token, log=log)


def _gone(request: Request) -> Callable[[], Coroutine[Any, Any, None]]:
    """Waits for the end of the connection; the body must have been read."""

    async def wait() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return wait


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error.response()


async def _http_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = CODES.get(error.status_code, "http_error")
    return problem_response(error.status_code, code, f"{error.detail}; see /docs", error.headers or {})


async def _client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _internal_error(_: Request, __: Exception) -> Response:
    return problem_response(500, CODES[500], "this is a bug of the service; its log says more", {})
