"""Ticket texts to token ids. Cut at control tokens only, so the ids are those of the whole prompt tokenised at once.

In token space a prompt has three parts: `prefix_ids`, everything up to the last control token before the ticket, the
same for every ticket; the stretch that holds the ticket; and the suffix, again the same, which ends where the answer
begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slm_runtime.chat_template import ChatTemplate
from slm_runtime.errors import LabelError, PromptTooLongError, RecordError, TaskError
from slm_runtime.rendering import Piece, render_prompt
from slm_runtime.task import Task
from slm_runtime.tokenizer import PlainTokenizer, Stretch, TokenIds

# Texts that end in a letter, a digit, punctuation and a line break: where the answer begins must not depend on them.
_PROBES = ("x", "7", "x.", "x\n")


@dataclass(frozen=True)
class EncodedTicket:
    """One ticket as token ids: what follows the shared prefix. `num_tokens` counts the whole prompt."""

    row: int
    token_ids: TokenIds
    num_tokens: int
    truncated: bool


@dataclass(frozen=True)
class LengthLimit:
    """At most `max_tokens` tokens in a prompt; `truncate` says what happens to longer ones: error, left or right."""

    max_tokens: int
    truncate: str


class PromptEncoder:
    """Turns ticket texts into token ids for one task.

    `prefix_ids` is shared by all tickets and ends with a control token; it is empty when none stands before the
    ticket. `end_of_turn_id` is the token with which the model ends an answer.

    Raises:
        FormatError: as `render_prompt` does.
    """

    def __init__(self, tokenizer: PlainTokenizer, template: ChatTemplate, task: Task) -> None:
        self._tokenizer = tokenizer
        prompt = render_prompt(template, tokenizer, task)
        self._frame = prompt.frame
        before, after = prompt.before, prompt.after
        self._control_before = before[-1].text if before else None
        self._control_after = after[0].text if after else None
        self._after = after
        self.prefix_ids = self._encode_pieces(before)
        self._suffix_ids = self._encode_pieces(after)
        self.end_of_turn_id = tokenizer.control_ids[prompt.end_of_turn]

    @property
    def num_frame_tokens(self) -> int:
        """Tokens of a prompt whose ticket is empty."""
        return len(self.prefix_ids) + len(self._tokenizer.encode(self._stretch(""))) + len(self._suffix_ids)

    def encode_many(
        self, rows: Sequence[int], texts: Sequence[str], limit: LengthLimit
    ) -> list[EncodedTicket | RecordError]:
        """The token ids of every text, in order, or the reason why that text cannot be used.

        A prompt over the limit loses ticket text, whole characters only, at its end or its start; instructions and
        answer header always stay.
        """
        encoded = self._tokenizer.encode_many([self._stretch(text) for text in texts])
        return [self._finish(*item, limit) for item in zip(rows, texts, encoded, strict=True)]

    def pieces(self, token_ids: TokenIds) -> list[tuple[str, TokenIds]]:
        """The ids in runs, each with the text or the control token that it stands for."""
        return self._tokenizer.pieces(token_ids)

    def label_tokens(self, labels: Sequence[str]) -> tuple[TokenIds, ...]:
        """The tokens of every label, taken from prompt end and label encoded together.

        A label is joined by a space unless the prompt ends in white space or with a control token.

        Raises:
            LabelError: a label changes the tokens of the prompt before it, or two labels have the same tokens.
            TaskError: the prompt ends in the ticket itself.
        """
        seen: dict[TokenIds, str] = {}
        for label in labels:
            tokens = self._label_tokens(label)
            if twin := seen.get(tokens):
                raise LabelError(f"labels {twin!r} and {label!r} have the same tokens {list(tokens)}; rename one")
            seen[tokens] = label
        return tuple(seen)

    def _label_tokens(self, label: str) -> TokenIds:
        tails = {self._tokens_after(end, label) for end in self._prompt_ends()}
        if len(tails) > 1:
            raise LabelError(
                f"the tokens of label {label!r} depend on the ticket before it; give the task an `assistant` text"
            )
        return tails.pop()

    def _prompt_ends(self) -> list[Stretch]:
        """The stretch where the answer begins; one for every probe text when the ticket lies in it."""
        if self._after:
            last = self._after[-1]
            if last.is_control:
                return [Stretch("", last.text, None)]
            return [Stretch(last.text, self._after[-2].text, None)]
        if not (self._frame.user_tail or self._frame.tail):
            raise TaskError("the prompt ends with the ticket, so no answer can follow; end `user` with a text")
        return [Stretch(self._frame.fill(text), self._control_before, None) for text in _PROBES]

    def _tokens_after(self, end: Stretch, label: str) -> TokenIds:
        joint = "" if not end.text or end.text[-1].isspace() else " "
        base = self._tokenizer.encode(end)
        ids = self._tokenizer.encode(Stretch(end.text + joint + label, end.before, None))
        if ids[: len(base)] != base or len(ids) == len(base):
            raise LabelError(
                f"label {label!r} merges with the end of the prompt, {end.text[-12:]!r}, into other tokens; "
                "end `assistant` with other characters, or rename the label"
            )
        return ids[len(base) :]

    def _stretch(self, text: str) -> Stretch:
        return Stretch(self._frame.fill(text), self._control_before, self._control_after)

    def _finish(
        self, row: int, text: str, ids: TokenIds | RecordError, limit: LengthLimit
    ) -> EncodedTicket | RecordError:
        if isinstance(ids, RecordError):
            return ids
        room = limit.max_tokens - len(self.prefix_ids) - len(self._suffix_ids)
        truncated = len(ids) > room
        if truncated:
            try:
                ids = self._truncate(text, ids, room, limit)
            except RecordError as error:
                return error
        token_ids = ids + self._suffix_ids
        return EncodedTicket(row, token_ids, len(self.prefix_ids) + len(token_ids), truncated)

    def _truncate(self, text: str, ids: TokenIds, room: int, limit: LengthLimit) -> TokenIds:
        """The ids of the stretch with as much of `text` as fits into `room` tokens."""
        if limit.truncate == "error":
            found = limit.max_tokens - room + len(ids)
            raise PromptTooLongError(
                f"prompt of {found} tokens, limit {limit.max_tokens}; raise --max-tokens or use --truncate right"
            )
        while len(ids) > room:
            if not text:
                raise PromptTooLongError(
                    f"the prompt without any ticket text is longer than the limit of {limit.max_tokens} tokens"
                )
            text = self._cut(text, len(ids) - room, limit.truncate)
            ids = self._tokenizer.encode(self._stretch(text))
        return ids

    def _cut(self, text: str, excess: int, side: str) -> str:
        """`text` without the characters of about `excess` tokens; always shorter than `text`."""
        start = len(self._frame.head) + len(self._frame.user_head)
        ends = [end - start for end in self._tokenizer.token_ends(self._stretch(text))]
        inside = [end for end in ends if 0 < end <= len(text)]
        if side == "right":
            kept = inside[-1 - excess] if len(inside) > excess else 0
            return text[: min(kept, len(text) - 1)]
        dropped = inside[excess - 1] if len(inside) >= excess else len(text)
        return text[max(dropped, 1) :]

    def _encode_pieces(self, pieces: Sequence[Piece]) -> TokenIds:
        """The ids of pieces that start or end at the ticket's stretch, where a control token always stands."""
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            if piece.is_control:
                ids.append(self._tokenizer.control_ids[piece.text])
            else:
                left = pieces[index - 1].text if index else None
                right = pieces[index + 1].text if index + 1 < len(pieces) else None
                ids += self._tokenizer.encode(Stretch(piece.text, left, right))
        return tuple(ids)
