"""From the bytes of a request to its body, within limits of size, time and memory."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request

from slm_runtime.serve.problems import ClientGoneError, RequestError
from slm_runtime.serve.strict_json import parse_json

# All bodies together, uploads in progress included.
MAX_HELD_BYTES = 256 * 1024 * 1024


class BodyReader:
    """Reads the bodies of all requests and knows how many bytes they hold together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._max_held = max(MAX_HELD_BYTES, max_bytes)
        self._held = 0

    @contextmanager
    def holding(self) -> Iterator["HeldBody"]:
        """A body whose bytes count until the end of the block."""
        body = HeldBody(self)
        try:
            yield body
        finally:
            self._held -= body.size

    def grow(self, size: int, by: int) -> None:
        """Count `by` more bytes of a body that has `size` with them. Raises RequestError 413 or 503."""
        self._held += by
        if size > self._max_bytes:
            raise self.too_large()
        if self._held > self._max_held:
            raise RequestError(503, "overloaded", "too many request bodies at once; try again", {"Retry-After": "1"})

    def check_length(self, declared: str | None) -> None:
        """Refuse a body that says it is too long. Raises RequestError 413."""
        if declared is not None and declared.isdecimal() and int(declared) > self._max_bytes:
            raise self.too_large()

    def too_large(self) -> RequestError:
        return RequestError(
            413, "too_large", f"the body is larger than {self._max_bytes} bytes; send fewer texts at once"
        )


class HeldBody:
    """The body of one request."""

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader
        self.size = 0

    async def json(self, request: Request, expires: float) -> Any:
        """The JSON value in the body, which must be there when the loop's clock shows `expires`.

        Raises:
            RequestError: 400, 408, 413, 415 or 503.
            ClientGoneError: the connection ended.
        """
        _check_headers(request)
        self._reader.check_length(request.headers.get("content-length"))
        try:
            async with asyncio.timeout_at(expires):
                return parse_json(await self._read(request))
        except TimeoutError as error:
            message = "the body did not arrive within the deadline"
            raise RequestError(408, "slow_upload", message, {"Connection": "close"}) from error

    async def _read(self, request: Request) -> bytes:
        chunks = bytearray()
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunk = message.get("body", b"")
            self.size += len(chunk)
            self._reader.grow(self.size, len(chunk))
            chunks += chunk
            if not message.get("more_body", False):
                return bytes(chunks)


def _check_headers(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise RequestError(415, "unsupported_encoding", "compressed bodies are not accepted; send plain JSON")
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "").replace(" ", "")
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise RequestError(415, "unsupported_type", "send Content-Type: application/json, in UTF-8")
