"""Bytes to JSON values, with everything refused that two readers could understand differently."""

import json
import math
from collections.abc import Sequence
from typing import Any

from slm_runtime.serve.problems import RequestError, bad_json


def parse_json(body: bytes) -> Any:
    """The value in UTF-8 bytes.

    Raises:
        RequestError: 400 for no JSON, other encodings, a doubled key, NaN, infinite or overlong numbers, deep nesting.
    """
    try:
        return _DECODER.decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise bad_json(f"byte {error.start} of the body is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise bad_json(f"the body is not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise bad_json("the body is nested too deeply") from error
    except ValueError as error:  # more digits than Python reads
        raise bad_json("the body holds a number with too many digits") from error


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twin = next(key for key in keys if keys.count(key) > 1)
        raise bad_json(f"the key {twin[:40]!r} is there twice")
    return found


def _no_constant(name: str) -> RequestError:
    raise bad_json(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise bad_json(f"the number {digits[:40]} is beyond the range of a float")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
