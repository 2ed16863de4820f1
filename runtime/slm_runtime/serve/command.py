"""`slm-run serve`: from the flags to a service that ends when it is told to."""

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from slm_runtime.bundle import find_bundle
from slm_runtime.classifier import Classifier
from slm_runtime.command import INTERRUPTED
from slm_runtime.defaults import DEFAULT_BATCH_TOKENS
from slm_runtime.errors import InputError
from slm_runtime.extra import require
from slm_runtime.interruption import Interruption
from slm_runtime.options import RunOptions, Truncate
from slm_runtime.precision import Precision
from slm_runtime.serve.settings import ServeSettings
from slm_runtime.serve.tokens import check_exposure, read_token
from slm_runtime.task import Scoring
from slm_runtime.task_flags import TaskFlags

BACKLOG_CONNECTIONS = 2048


@dataclass(frozen=True)
class ServeRequest:
    """The flags of `slm-run serve`, as click delivers them."""

    bundle: str
    labels: str | None
    labels_file: Path | None
    task: Path | None
    scoring: Scoring | None
    threshold: float | None
    abstain: str | None
    all_scores: bool
    max_tokens: int | None
    truncate: Truncate
    provider: str
    threads: int | None
    precision: Precision
    host: str
    port: int
    token_file: Path | None
    insecure: bool
    batch_tokens: int
    max_batch: int
    max_wait_ms: float
    max_queue: int
    max_body_bytes: int
    max_texts: int
    deadline_s: float
    quiet: bool

    def task_flags(self) -> TaskFlags:
        return TaskFlags(self.labels, self.labels_file, self.task, self.scoring, self.threshold, self.abstain)

    def options(self) -> RunOptions:
        return RunOptions(
            all_scores=self.all_scores,
            batch_tokens=min(self.batch_tokens, DEFAULT_BATCH_TOKENS),
            max_tokens=self.max_tokens,
            truncate=self.truncate,
        )

    def settings(self) -> ServeSettings:
        return ServeSettings(
            batch_tokens=self.batch_tokens,
            max_batch=self.max_batch,
            max_wait_s=self.max_wait_ms / 1000,
            max_queue=self.max_queue,
            max_body_bytes=self.max_body_bytes,
            max_texts=self.max_texts,
            deadline_s=self.deadline_s,
        )


def serve(request: ServeRequest) -> int:
    """Serve until SIGTERM or Ctrl-C; 0 when everything accepted was answered.

    Raises:
        InputError: a flag, the task, the token or the address cannot be used.
        ArtifactError: the bundle cannot be used.
    """
    for package in ("starlette", "uvicorn", "prometheus_client"):
        require(package, extra="serve", purpose="slm-run serve")
    from slm_runtime.serve.app import build_app
    from slm_runtime.serve.http_server import HttpServer
    from slm_runtime.serve.service import Service

    task, options, settings = request.task_flags().read_task(), request.options(), request.settings()
    token = read_token(request.token_file)
    check_exposure(request.host, token, insecure=request.insecure)
    folder = find_bundle(request.bundle)
    with _listen(request.host, request.port) as listener, Interruption() as interruption:
        _say(f"listening on {_address(listener)}, loading the model")
        load = partial(
            Classifier.load,
            folder,
            provider=request.provider,
            threads=request.threads,
            precision=request.precision,
        )
        server = HttpServer(
            lambda: Service(load, task, options, settings, _say),
            lambda service: build_app(service, token=token, log=not request.quiet),
            interruption,
            deadline_s=settings.deadline_s,
        )
        _run(lambda: server.run([listener]))
        _run(server.service.close)
    if server.service.failure is not None:
        raise server.service.failure
    _say("stopped; every accepted request was answered")
    return 0


def _run(step: Callable[[], None]) -> None:
    """Do `step`; a second signal ends the process at once, whatever its threads are doing."""
    try:
        step()
    except KeyboardInterrupt:
        _say("interrupted")
        sys.stderr.flush()
        os._exit(INTERRUPTED)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises InputError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG_CONNECTIONS)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"cannot listen on port {port} of {host} ({_reason(error)}); choose another --port or --host"
        ) from error


def _reason(error: OSError | OverflowError) -> str:
    number = getattr(error, "errno", None)
    return os.strerror(number) if number is not None and number > 0 else str(error)


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _say(message: str) -> None:
    click.echo(f"slm-run: {message}", err=True)
