"""A model hub on the loopback interface: the few answers huggingface_hub needs, and what was asked."""

import hashlib
import json
import re
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import ClassVar, Self


@dataclass
class FakeHub:
    """One repository; `refusal` (status, hub's error code) is the answer to everything, if set."""

    model_id: str
    commit: str
    files: dict[str, bytes]
    refusal: tuple[int, str] | None = None
    requests: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the port; safe to call twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[FakeHub]

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing: the tests look at stderr."""

    def _answer(self, *, with_body: bool) -> None:
        hub = self.hub
        path = self.path.partition("?")[0]
        hub.requests.append(path)
        status, headers, body = 404, {"X-Error-Code": "RepoNotFound"}, b""
        revision = rf"(?:main|{hub.commit})"
        if hub.refusal:
            status, headers = hub.refusal[0], {"X-Error-Code": hub.refusal[1]}
        elif re.fullmatch(rf"/api/models/{hub.model_id}(/revision/{revision})?", path):
            siblings = [{"rfilename": name, "size": len(data)} for name, data in hub.files.items()]
            status, headers = 200, {}
            body = json.dumps({"id": hub.model_id, "sha": hub.commit, "siblings": siblings}).encode()
        elif found := re.fullmatch(rf"/{hub.model_id}/resolve/{revision}/(.+)", path):
            body = hub.files[found.group(1)]
            status, headers = (
                200,
                {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": hub.commit},
            )
        elif path.startswith(f"/api/models/{hub.model_id}/"):
            headers = {"X-Error-Code": "RevisionNotFound"}
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)
