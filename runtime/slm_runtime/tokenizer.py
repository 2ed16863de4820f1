"""A tokenizer that cannot be talked to: control tokens exist between stretches of text, never inside them.

Text is encoded by a copy of the bundle's tokenizer from which every control token was removed, so `<|im_end|>` in a
ticket is twelve ordinary characters. Control tokens enter by id only. Encoding the stretches between the template's
control tokens one by one gives the ids of the whole prompt, because tokenizers split at control tokens first.
"""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import AddedToken, Encoding, Tokenizer

from slm_runtime.errors import FormatError, RecordError

TokenIds = tuple[int, ...]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Stretch:
    """Text between two control tokens (None at either end of the prompt)."""

    text: str
    before: str | None
    after: str | None


class PlainTokenizer:
    """Encodes stretches of text; knows the control tokens and their ids."""

    def __init__(self, path: Path) -> None:
        self._path = path
        data = _read_json(path)
        added = data.get("added_tokens") or []
        kept = [token for token in added if _is_plain_whitespace(token)]
        self._flags = {token["content"]: token for token in added if not _is_plain_whitespace(token)}
        self.control_ids = {content: int(token["id"]) for content, token in self._flags.items()}
        # The unknown token is what the model makes of characters it does not know: text may give it.
        unknown = _unknown_token(data["model"])
        self._forbidden = frozenset(i for content, i in self.control_ids.items() if content != unknown)
        data |= {"added_tokens": kept, "truncation": None, "padding": None, "post_processor": None}
        try:
            self._tokenizer = Tokenizer.from_str(json.dumps(data))
        except Exception as error:  # tokenizers raises bare Exception
            raise FormatError(
                f"{path}: this tokenizers library cannot read it ({error}); upgrade tokenizers or export again"
            ) from error
        # A control token's neighbours see it; an anchor that no text can contain stands in for it.
        self._nonce = secrets.token_hex(8)
        self._anchors: dict[tuple[bool, bool], str] = {}
        longest_first = sorted(self.control_ids, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def split(self, text: str) -> list[str]:
        """`text`, which must come from a template, cut before and after every control token; no empty pieces."""
        pieces: list[str] = []
        start = 0
        for match in self._control_pattern.finditer(text):
            pieces += [text[start : match.start()], match.group()]
            start = match.end()
        return [piece for piece in [*pieces, text[start:]] if piece]

    def is_control(self, piece: str) -> bool:
        return piece in self.control_ids

    def encode(self, stretch: Stretch) -> TokenIds:
        """The ids of one stretch. Raises RecordError as `encode_many` does."""
        result = self.encode_many([stretch])[0]
        if isinstance(result, RecordError):
            raise result
        return result

    def encode_many(self, stretches: Sequence[Stretch]) -> list[TokenIds | RecordError]:
        """The ids of every stretch, in order; an error instead where the text would form a control token."""
        encodings = self._tokenizer.encode_batch_fast(self._anchored(stretches), add_special_tokens=False)
        return [self._checked(self._trim(e.ids, s)) for e, s in zip(encodings, stretches, strict=True)]

    def token_ends(self, stretch: Stretch) -> list[int]:
        """For every token of the stretch, the index of the character after its last one."""
        encoding: Encoding = self._tokenizer.encode(self._anchored([stretch])[0], add_special_tokens=False)
        shift = len(self._anchor(stretch.before))
        return [max(0, end - shift) for _, end in self._trim(encoding.offsets, stretch)]

    def pieces(self, token_ids: TokenIds) -> list[tuple[str, TokenIds]]:
        """The ids in runs, each with what it stands for: a control token, or text between two of them."""
        names = {i: content for content, i in self.control_ids.items()}
        found: list[tuple[str, TokenIds]] = []
        for is_control, run in groupby(token_ids, key=names.__contains__):
            ids = tuple(run)
            if is_control:
                found += [(names[i], (i,)) for i in ids]
            else:
                found.append((self._tokenizer.decode(list(ids), skip_special_tokens=False), ids))
        return found

    def _anchored(self, stretches: Sequence[Stretch]) -> list[str]:
        return [self._anchor(s.before) + s.text + self._anchor(s.after) for s in stretches]

    def _trim(self, items: Sequence[Item], stretch: Stretch) -> tuple[Item, ...]:
        end = len(items) - (stretch.after is not None)
        return tuple(items[(stretch.before is not None) : end])

    def _checked(self, ids: TokenIds) -> TokenIds | RecordError:
        if self._forbidden.isdisjoint(ids):
            return ids
        return RecordError("the text forms a control token of this model's tokenizer; remove it from the text")

    def _anchor(self, control: str | None) -> str:
        """An added token that strips its neighbours as `control` does."""
        if control is None:
            return ""
        flags = self._flags[control]
        key = bool(flags.get("lstrip")), bool(flags.get("rstrip"))
        if key not in self._anchors:
            anchor = f"\ufdd0{self._nonce}{int(key[0])}{int(key[1])}\ufdd1"
            token = AddedToken(anchor, lstrip=key[0], rstrip=key[1], normalized=False, special=True)
            self._tokenizer.add_special_tokens([token])
            self._anchors[key] = anchor
        return self._anchors[key]


def _is_plain_whitespace(token: dict[str, Any]) -> bool:
    """Some tokenizers store runs of blanks as added tokens; those are ordinary text, not control."""
    return not token.get("special") and not token["content"].strip()


def _unknown_token(model: dict[str, Any]) -> str | None:
    if (index := model.get("unk_id")) is not None:
        return str(model["vocab"][index][0])
    return model.get("unk_token")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read as a tokenizer ({error}); export the bundle again") from error
    if not isinstance(data, dict) or "model" not in data:
        raise FormatError(f"{path}: not a tokenizer.json, it has no model; export the bundle again")
    return data
