"""What can go wrong with a request: a status, a code for programs, a message for people."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.responses import JSONResponse

# A client that went away gets no answer; this number, which nginx made common, stands for it in log and metrics.
CLIENT_GONE = 499
CODES = {
    400: "bad_request",
    401: "unauthorized",
    404: "not_found",
    405: "method_not_allowed",
    500: "internal_error",
}


@dataclass
class RequestError(Exception):
    """A request that gets an error instead of an answer. Not frozen: Python sets an exception's traceback."""

    status: int
    code: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> JSONResponse:
        return problem_response(self.status, self.code, self.message, self.headers)


class ClientGoneError(Exception):
    """The client closed the connection before it had its answer."""


def bad_json(message: str) -> RequestError:
    return RequestError(400, "invalid_json", message)


def bad_field(message: str) -> RequestError:
    return RequestError(422, "invalid_request", message)


def problem_response(status: int, code: str, message: str, headers: Mapping[str, str]) -> JSONResponse:
    """The one shape of all errors."""
    return JSONResponse({"error": {"code": code, "message": message}}, status, dict(headers))
