"""Render a chat template of unknown origin: jinja2's sandbox, a time limit, a size limit."""

import ctypes
import datetime
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, TypedDict

from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slm_runtime.errors import FormatError

TIME_LIMIT_S = 2.0
MAX_RENDERED_CHARS = 4_000_000


class Message(TypedDict):
    """One turn of a conversation."""

    role: str
    content: str


class _Timeout(BaseException):
    """Raised inside the rendering thread; not an Exception, so that no template construct can swallow it."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox that transformers uses, with bounded string and list products on top."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(x) if hasattr(x, "__len__") else abs(x) for x in (left, right)]
        limit = sizes[0] * sizes[1] if operator == "*" else sizes[0] ** min(sizes[1], 64)
        if limit > MAX_RENDERED_CHARS:
            raise SecurityError(f"{operator} makes more than {MAX_RENDERED_CHARS} characters")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """A model's chat template. Rendering follows transformers' conventions for templates.

    Source: apply_chat_template in transformers 4.57 (utils/chat_template_utils.py) for the environment's options.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        self._special_tokens = special_tokens
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise FormatError(f"chat template: not valid jinja ({error}); export the bundle again") from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The conversation as text, control tokens included.

        Raises:
            FormatError: the template refuses the messages, leaves the sandbox, or exceeds the time or size limit.
        """
        try:
            with _time_limit(TIME_LIMIT_S):
                chunks = self._template.generate(
                    messages=[dict(message) for message in messages],
                    add_generation_prompt=add_generation_prompt,
                    **self._special_tokens,
                )
                return _join_bounded(chunks)
        except _Timeout:
            raise FormatError(f"chat template: rendering took longer than {TIME_LIMIT_S:g} s and was stopped") from None
        except Exception as error:
            raise FormatError(f"chat template: cannot render these messages ({error})") from error


def _join_bounded(chunks: Iterator[str]) -> str:
    parts: list[str] = []
    length = 0
    for chunk in chunks:
        parts.append(chunk)
        length += len(chunk)
        if length > MAX_RENDERED_CHARS:
            raise SecurityError(f"output longer than {MAX_RENDERED_CHARS} characters")
    return "".join(parts)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `_Timeout` in this thread after `seconds`, also inside a loop that calls nothing."""
    thread = ctypes.c_ulong(threading.get_ident())
    raise_in_thread: Callable[..., int] = ctypes.pythonapi.PyThreadState_SetAsyncExc
    lock = threading.Lock()
    finished = False

    def expire() -> None:
        with lock:
            if not finished:
                raise_in_thread(thread, ctypes.py_object(_Timeout))

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            finished = True
        timer.cancel()


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
