"""uvicorn, with a deadline for request heads, one shape of errors, and an end that loses nothing."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from slm_runtime.interruption import Interruption
from slm_runtime.serve.observe import Observed
from slm_runtime.serve.service import Service
from slm_runtime.serve.worker import Phase

# A connection may take so long from its start, or from its last answer, to a whole request head; and as long to read
# an answer.
HEAD_S = 15
# While draining, open connections that say nothing are closed after this time.
DRAIN_QUIET_S = 1.0
# Answers that a client does not read delay the end no longer than this beyond the deadline.
SLOW_READER_S = 5


class PatientProtocol(H11Protocol):
    """Ends a connection whose request head, or refused body, or reading of an answer takes longer than `HEAD_S`."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._restart_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._restart_timer()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's answer to bytes that are not HTTP, in the shape of all errors."""
        body = json.dumps({"error": {"code": "bad_http", "message": msg}}).encode()
        headers = [("content-type", "application/json"), ("connection", "close")]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _restart_timer(self) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self._head_timer = self.loop.call_later(HEAD_S, self._give_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            return
        if self.transport.get_write_buffer_size():  # an answer that nobody reads
            self.transport.abort()
        else:
            self.transport.close()


class HttpServer(uvicorn.Server):
    """Serves until `interruption` is requested or the service fails, then answers what it has accepted.

    The service is made by `make_service` when the event loop runs, its app by `make_app`.
    """

    def __init__(
        self,
        make_service: Callable[[], Service],
        make_app: Callable[[Service], Observed],
        interruption: Interruption,
        *,
        deadline_s: float,
    ) -> None:
        self._make_service = make_service
        self._make_app = make_app
        self._interruption = interruption
        super().__init__(
            uvicorn.Config(
                self._call_app,
                http=PatientProtocol,
                ws="none",
                loop="asyncio",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=HEAD_S,
                timeout_graceful_shutdown=int(deadline_s) + SLOW_READER_S,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.service = self._make_service()
        self.observed = self._make_app(self.service)
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        ends = await super().on_tick(counter)
        return ends or self._interruption.requested or self.service.phase is Phase.FAILED

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, give open connections time to say what they were saying, answer, close."""
        self.service.drain()
        self.observed.draining = True
        for _ in range(2):  # connections that the system has accepted already come in
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        quiet_at = loop.time() + DRAIN_QUIET_S
        while self.server_state.connections and loop.time() < quiet_at:
            await asyncio.sleep(0.02)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to `interruption`."""
        yield

    async def _call_app(self, scope: Any, receive: Any, send: Any) -> None:
        await self.observed(scope, receive, send)
