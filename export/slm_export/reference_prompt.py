"""The reference's own way from a task and a text to token ids: transformers' chat template and tokenizer.

Nothing of the runtime is used but the task itself, so that a mistake there cannot hide here.
"""

import re
from dataclasses import dataclass
from typing import Any

from slm_runtime.errors import LabelError, SourceError
from slm_runtime.task import TEXT_FIELD, Task

Messages = list[dict[str, str]]
# Private use: no template and no control token holds one.
_FIRST_DISGUISE = 0xF0000
_PROBE = "I can't  log in\n\n\tsince 12.5.,\nnaïve 日本 👩\u200d💻 "


class _Disguise:
    """Swaps every visible character of a message for a private one, and back.

    What was swapped cannot be taken for a control token, alone or with its neighbours; white space stays, because
    templates strip it.
    """

    def __init__(self) -> None:
        self._codes: dict[str, str] = {}

    def hide(self, text: str) -> str:
        return "".join(char if char.isspace() else self._code(char) for char in text)

    def reveal(self, text: str) -> str:
        chars = {code: char for char, code in self._codes.items()}
        return "".join(chars.get(char, char) for char in text)

    def _code(self, char: str) -> str:
        return self._codes.setdefault(char, chr(_FIRST_DISGUISE + len(self._codes)))


@dataclass(frozen=True)
class _Rendered:
    """One text twice: as transformers renders it, and with the messages' contents in disguise."""

    plain: str
    hidden: str
    disguise: _Disguise

    def followed_by(self, joint: str, content: str) -> "_Rendered":
        return _Rendered(self.plain + joint + content, self.hidden + joint + self.disguise.hide(content), self.disguise)


class ReferencePrompts:
    """The prompts of one task, in the tokens of a transformers tokenizer with a chat template.

    Contents without control tokens go through the tokenizer as they are. Others are encoded between the template's
    control tokens, by the tokenizer's parts that know no added token.

    Raises:
        SourceError: the tokenizer cannot be taken apart like this, or no control token ends the assistant's turn.
    """

    def __init__(self, tokenizer: Any, task: Task) -> None:
        self._tokenizer = tokenizer
        self._task = task
        added = tokenizer.added_tokens_decoder
        self._controls = {token.content: token for token in added.values() if token.special or token.content.strip()}
        self._control_ids = {token.content: token_id for token_id, token in added.items()}
        longest_first = sorted(self._controls, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        edge, disguise = next(iter(self._controls), ""), _Disguise()
        probe = _Rendered(edge + _PROBE + edge, edge + disguise.hide(_PROBE) + edge, disguise)
        if self._encode_in_pieces(probe) != self._encode_whole(probe):
            raise SourceError(
                f"{tokenizer.name_or_path}: the reference cannot encode text without this tokenizer's added tokens; "
                "compare with another model"
            )

    def prompt_ids(self, text: str) -> list[int]:
        """The whole prompt for one ticket."""
        return self._encode(self._render(text))

    def label_ids(self, label: str) -> list[int]:
        """What encoding the prompt's end and `label` together adds to the prompt.

        Raises:
            LabelError: the label changes the tokens of the prompt.
        """
        prompt = self._render("x")
        ends_in_control = any(prompt.hidden.endswith(control) for control in self._controls)
        joint = "" if ends_in_control or prompt.plain[-1].isspace() else " "
        before, after = self._encode(prompt), self._encode(prompt.followed_by(joint, label))
        if after[: len(before)] != before or len(after) == len(before):
            raise LabelError(f"label {label!r} changes the tokens at the end of the prompt; rename it")
        return after[len(before) :]

    def end_of_turn_id(self) -> int:
        """The first control token after an answer.

        Raises:
            SourceError: the template puts none there.
        """
        answer = _Disguise().hide("answer")
        messages = [*self._messages("x"), {"role": "assistant", "content": answer}]
        text: str = self._tokenizer.apply_chat_template(messages, tokenize=False)
        found = self._control_pattern.search(text, text.index(answer))
        if found is None:
            raise SourceError(f"{self._tokenizer.name_or_path}: the chat template ends no turn with a control token")
        return self._control_ids[found.group()]

    def _messages(self, text: str) -> Messages:
        task = self._task
        messages = [{"role": "system", "content": task.system_prompt}] if task.system_prompt else []
        for example in task.examples:
            messages.append({"role": "user", "content": task.user.replace(TEXT_FIELD, example.text)})
            messages.append({"role": "assistant", "content": example.label})
        return [*messages, {"role": "user", "content": task.user.replace(TEXT_FIELD, text)}]

    def _render(self, text: str) -> _Rendered:
        disguise = _Disguise()
        messages = self._messages(text)
        hidden = [message | {"content": disguise.hide(message["content"])} for message in messages]
        # The answer's start belongs to the template's side: a task may open and close a thinking block there.
        plain_text, hidden_text = (
            self._tokenizer.apply_chat_template(content, tokenize=False, add_generation_prompt=True)
            + self._task.assistant
            for content in (messages, hidden)
        )
        return _Rendered(plain_text, hidden_text, disguise)

    def _encode(self, rendered: _Rendered) -> list[int]:
        controls = self._control_pattern.findall
        if controls(rendered.plain) == controls(rendered.hidden):
            return self._encode_whole(rendered)
        return self._encode_in_pieces(rendered)

    def _encode_whole(self, rendered: _Rendered) -> list[int]:
        return list(self._tokenizer(rendered.plain, add_special_tokens=False)["input_ids"])

    def _encode_in_pieces(self, rendered: _Rendered) -> list[int]:
        ids: list[int] = []
        start, strips_left = 0, False
        for match in self._control_pattern.finditer(rendered.hidden):
            control = self._controls[match.group()]
            stretch = rendered.hidden[start : match.start()]
            ids += self._encode_stretch(rendered.disguise.reveal(stretch), strips_left, control.lstrip)
            ids.append(self._control_ids[control.content])
            start, strips_left = match.end(), control.rstrip
        rest = rendered.disguise.reveal(rendered.hidden[start:])
        return ids + self._encode_stretch(rest, strips_left, strips_right=False)

    def _encode_stretch(self, text: str, strips_left: bool, strips_right: bool) -> list[int]:
        text = text.lstrip() if strips_left else text
        text = text.rstrip() if strips_right else text
        parts = self._tokenizer.backend_tokenizer
        if parts.normalizer is not None:
            text = parts.normalizer.normalize_str(text)
        words = [text]
        if parts.pre_tokenizer is not None:
            words = [word for word, _ in parts.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for word in words if word for token in parts.model.tokenize(word)]
