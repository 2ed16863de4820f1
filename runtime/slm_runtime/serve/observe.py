"""Around every request: the token, the log line, the counters, and the end of connections while draining."""

import sys
import time
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slm_runtime.serve.metrics import Metrics
from slm_runtime.serve.problems import CLIENT_GONE, problem_response
from slm_runtime.serve.tokens import is_authorized

OPEN_ROUTES = ("/healthz", "/readyz", "/openapi.json", "/docs")
LOGGED_PATH_CHARS = 100


class Observed:
    """The app behind the door. `draining` is set when connections should end after their next answer."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, routes: frozenset[str], *, token: bytes | None, log: bool
    ) -> None:
        self.draining = False
        self._app = app
        self._metrics = metrics
        self._routes = routes
        self._token = token
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        status = CLIENT_GONE

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self.draining:
                    message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
            await send(message)

        scope.setdefault("state", {})
        try:
            if self._may_enter(scope):
                await self._app(scope, receive, send_noting)
            else:
                refusal = problem_response(
                    401, "unauthorized", "a bearer token is needed", {"WWW-Authenticate": "Bearer"}
                )
                await refusal(scope, receive, send_noting)
        finally:
            self._note(scope, status, time.perf_counter() - started)

    def _may_enter(self, scope: Scope) -> bool:
        return self._token is None or scope["path"] in OPEN_ROUTES or is_authorized(scope["headers"], self._token)

    def _note(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        route = scope["path"] if scope["path"] in self._routes else "other"
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        if not self._log:
            return
        # The path as it came, percent-encoded, and no query: what a client writes there is not for the log.
        path = scope.get("raw_path", b"").decode("ascii", "replace")[:LOGGED_PATH_CHARS]
        client = scope["client"][0] if scope.get("client") else "-"
        texts = scope["state"].get("num_texts", 0)
        clock = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        _write(f"{clock} {client} {scope['method']} {path} {status} {seconds * 1000:.1f} ms, {texts} texts\n")


def _write(line: str) -> None:
    try:
        sys.stderr.write(line)
    except OSError:  # nobody reads the log any more: the service goes on
        return
