"""The bearer token: where it comes from, and who has it."""

import hmac
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from slm_runtime.errors import InputError

TOKEN_VARIABLE = "SLM_RUN_SERVE_TOKEN"  # noqa: S105 - the name of a variable


def read_token(file: Path | None) -> bytes | None:
    """The token in `file`, else in the environment; None where there is neither.

    Raises:
        InputError: the file cannot be read, or the token is empty or has characters that no header carries.
    """
    if file is None:
        found, source = os.environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
        if found is None:
            return None
    else:
        source = str(file)
        try:
            found = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: cannot read the token ({error})") from error
    token = found.strip()
    if not token or not all("!" <= character <= "~" for character in token):
        raise InputError(f"{source}: the token must be one word of visible ASCII characters")
    return token.encode("ascii")


def is_authorized(headers: Sequence[tuple[bytes, bytes]], token: bytes) -> bool:
    """Whether the one Authorization header is `Bearer` and the token; the comparison takes the same time for all."""
    values = [value for name, value in headers if name == b"authorization"]
    if len(values) != 1:
        return False
    scheme, _, given = values[0].partition(b" ")
    return hmac.compare_digest(given.strip(), token) and scheme.lower() == b"bearer"


def check_exposure(host: str, token: bytes | None, *, insecure: bool) -> None:
    """Refuse an open door. Raises InputError for a host that others can reach, without a token."""
    if token is None and not insecure and not _is_loopback(host):
        raise InputError(
            f"--host {host} can be reached from other machines and there is no token; give --token-file or "
            f"{TOKEN_VARIABLE}, or --insecure if something else keeps strangers away"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
