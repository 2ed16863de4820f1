"""A task rendered through a chat template once, and taken apart where control tokens stand.

Every message is rendered as a mark; the marks are replaced by the real contents only after the template's control
tokens were found, so nothing that a prompt or a ticket says can become one.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from slm_runtime.chat_template import ChatTemplate, Message
from slm_runtime.errors import FormatError
from slm_runtime.task import TEXT_FIELD, Task
from slm_runtime.tokenizer import PlainTokenizer

# White space around each mark shows whether the template strips message contents.
_EDGE = "\n \n"


@dataclass(frozen=True)
class Piece:
    """A control token, or the text between two of them."""

    text: str
    is_control: bool


@dataclass(frozen=True)
class TicketFrame:
    """What surrounds the ticket inside its piece. The template may strip the message but not what it adds around it."""

    head: str
    user_head: str
    user_tail: str
    tail: str
    strips_left: bool
    strips_right: bool

    def fill(self, text: str) -> str:
        """The piece with the ticket in it."""
        content = self.user_head + text + self.user_tail
        return self.head + _strip(content, self.strips_left, self.strips_right) + self.tail


@dataclass(frozen=True)
class RenderedPrompt:
    """Pieces before the ticket's piece, the ticket's piece, pieces after it, and the token that ends a turn."""

    before: tuple[Piece, ...]
    frame: TicketFrame
    after: tuple[Piece, ...]
    end_of_turn: str


def render_prompt(template: ChatTemplate, tokenizer: PlainTokenizer, task: Task) -> RenderedPrompt:
    """`task` as the template writes it, `task.assistant` appended where the answer begins.

    Raises:
        FormatError: the template loses, repeats or reorders the ticket, or ends no turn with a control token.
    """
    nonce = secrets.token_hex(8)
    contents = _contents(task)
    messages: list[Message] = [
        {"role": role, "content": f"{_EDGE}{_mark(nonce, i)}{_EDGE}"} for i, (role, _) in enumerate(contents)
    ]
    rendered = template.render(messages, add_generation_prompt=True) + task.assistant
    ticket = len(contents) - 1
    if rendered.count(_mark(nonce, ticket)) != 1:
        raise FormatError("chat template: the user's message does not appear exactly once in the prompt")
    pieces = [Piece(text, tokenizer.is_control(text)) for text in tokenizer.split(rendered)]
    slot = next(i for i, piece in enumerate(pieces) if _mark(nonce, ticket) in piece.text)
    frame = _frame(pieces[slot].text, nonce, [content for _, content in contents])

    def filled(part: Sequence[Piece]) -> tuple[Piece, ...]:
        return tuple(Piece(_fill_static(p.text, nonce, [c for _, c in contents]), p.is_control) for p in part)

    return RenderedPrompt(
        before=filled(pieces[:slot]),
        frame=frame,
        after=filled(pieces[slot + 1 :]),
        end_of_turn=_end_of_turn(template, tokenizer, messages, nonce),
    )


def _contents(task: Task) -> list[tuple[str, str]]:
    """(role, content) of every message; the last one holds the ticket."""
    contents = [("system", task.system_prompt)] if task.system_prompt else []
    for example in task.examples:
        contents += [("user", task.user.replace(TEXT_FIELD, example.text)), ("assistant", example.label)]
    return [*contents, ("user", task.user)]


def _mark(nonce: str, index: int) -> str:
    return f"\ufdd2{nonce}.{index}\ufdd3"


def _marks(nonce: str) -> re.Pattern[str]:
    return re.compile(f"({re.escape(_EDGE)})?\ufdd2{nonce}\\.(\\d+)\ufdd3({re.escape(_EDGE)})?")


def _strip(text: str, left: bool, right: bool) -> str:
    text = text.lstrip() if left else text
    return text.rstrip() if right else text


def _fill_static(text: str, nonce: str, contents: Sequence[str]) -> str:
    return _marks(nonce).sub(lambda m: _strip(contents[int(m[2])], not m[1], not m[3]), text)


def _frame(text: str, nonce: str, contents: Sequence[str]) -> TicketFrame:
    last = next(m for m in _marks(nonce).finditer(text) if int(m[2]) == len(contents) - 1)
    user_head, user_tail = contents[-1].split(TEXT_FIELD)
    return TicketFrame(
        head=_fill_static(text[: last.start()], nonce, contents),
        user_head=user_head,
        user_tail=user_tail,
        tail=_fill_static(text[last.end() :], nonce, contents),
        strips_left=not last[1],
        strips_right=not last[3],
    )


def _end_of_turn(template: ChatTemplate, tokenizer: PlainTokenizer, messages: Sequence[Message], nonce: str) -> str:
    """The first control token after an answer."""
    mark = _mark(nonce, len(messages))
    answered = template.render([*messages, {"role": "assistant", "content": mark}], add_generation_prompt=False)
    _, found, rest = answered.partition(mark)
    following = [text for text in tokenizer.split(rest) if tokenizer.is_control(text)]
    if not found or not following:
        raise FormatError("chat template: no control token ends the assistant's turn, so label ends cannot be scored")
    return following[0]
