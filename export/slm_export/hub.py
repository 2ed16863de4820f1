"""A checkpoint from the Hugging Face hub: one commit, only the files an export reads, in the hub's cache."""

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slm_export.catalog import hub_free_hint
from slm_export.checkpoint_folder import check_checkpoint_folder, check_file_names, refuse_remote_code
from slm_export.resources import require_room
from slm_runtime.errors import SourceError

TIMEOUT_S = 5.0
CONFIG_FILES = ("*.json", "*.jinja", "README.md")
WEIGHT_FILES = ("*.safetensors", "merges.txt", "tokenizer.model", "LICENSE*")
CODE_FILES = ("*.py",)
SUBFOLDERS = ("*/*",)


class HubUnreachableError(SourceError):
    """The hub gave no usable answer."""


@dataclass(frozen=True)
class HubRequest:
    """One repository at one revision. `cache_dir` None means huggingface_hub's own cache."""

    model_id: str
    revision: str
    cache_dir: Path | None
    trust_remote_code: bool

    @property
    def is_commit(self) -> bool:
        """Whether the revision is a commit, which cannot change, rather than a branch or a tag."""
        return re.fullmatch(r"[0-9a-f]{40}", self.revision) is not None

    @property
    def wanted_files(self) -> tuple[str, ...]:
        """File name patterns; pickled weights are in none of them, code only where it is trusted."""
        return CONFIG_FILES + WEIGHT_FILES + (CODE_FILES if self.trust_remote_code else ())


@dataclass(frozen=True)
class _Listing:
    commit: str
    size_bytes_by_name: dict[str, int]


def fetch_snapshot(request: HubRequest, *, offline: bool, say: Callable[[str], None]) -> Path:
    """The folder of the requested commit, named after its sha. A complete cached commit needs no hub.

    Raises: SourceError, within seconds where the hub cannot be reached; ResourceError.
    """
    from huggingface_hub import constants

    cached = _cached_folder(request)
    if offline or constants.HF_HUB_OFFLINE:
        if cached is None:
            raise SourceError(
                f"{request.model_id}: revision {request.revision} is not in the cache, and offline mode "
                f"forbids fetching it. {hub_free_hint()}"
            )
        return cached
    if cached and request.is_commit and not request.trust_remote_code and _is_complete(cached):
        return cached
    try:
        listing = _look_up(request)
    except HubUnreachableError:
        if cached is None:
            raise
        say(f"{request.model_id}: the hub cannot be reached, using commit {cached.name} from the cache")
        return cached
    return _download(request, listing, say)


def _cached_folder(request: HubRequest) -> Path | None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return _snapshot(request, request.wanted_files, offline=True)
    except LocalEntryNotFoundError:
        return None


def _is_complete(folder: Path) -> bool:
    """False for what an interrupted download leaves behind. Whether its code is allowed is asked later."""
    try:
        check_checkpoint_folder(folder, trust_remote_code=True)
    except SourceError:
        return False
    return True


def _look_up(request: HubRequest) -> _Listing:
    from huggingface_hub import HfApi

    with _hub_errors(request):
        info = HfApi(endpoint=_endpoint()).model_info(
            request.model_id, revision=request.revision, timeout=TIMEOUT_S, files_metadata=True
        )
    return _Listing(str(info.sha), {file.rfilename: file.size or 0 for file in info.siblings or ()})


def _download(request: HubRequest, listing: _Listing, say: Callable[[str], None]) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.utils._paths import filter_repo_objects

    check_file_names(f"{request.model_id} at {listing.commit}", listing.size_bytes_by_name)
    wanted = filter_repo_objects(
        listing.size_bytes_by_name,
        allow_patterns=list(request.wanted_files),
        ignore_patterns=list(SUBFOLDERS),
    )
    size_bytes = sum(listing.size_bytes_by_name[name] for name in wanted)
    cache_dir = request.cache_dir or Path(constants.HF_HUB_CACHE)
    require_room(cache_dir, size_bytes, 0, f"fetching {request.model_id}")
    say(f"{request.model_id}: commit {listing.commit}, up to {size_bytes / 1e6:.0f} MB to fetch")
    with _hub_errors(request):
        # Configuration first: a model that asks for code is refused before its weights are fetched.
        folder = _snapshot(request, CONFIG_FILES, offline=False)
        refuse_remote_code(folder, trust_remote_code=request.trust_remote_code)
        return _snapshot(request, request.wanted_files, offline=False)


def _snapshot(request: HubRequest, patterns: tuple[str, ...], *, offline: bool) -> Path:
    from huggingface_hub import snapshot_download

    folder = snapshot_download(
        request.model_id,
        # By the name that was given: the cache then also knows which commit a branch was at.
        revision=request.revision,
        cache_dir=request.cache_dir,
        allow_patterns=list(patterns),
        ignore_patterns=list(SUBFOLDERS),
        etag_timeout=TIMEOUT_S,
        endpoint=_endpoint(),
        local_files_only=offline,
    )
    return Path(folder)


def _endpoint() -> str | None:
    """The mirror that the environment names; huggingface_hub itself reads it only once, when imported."""
    return os.environ.get("HF_ENDPOINT") or None


@contextmanager
def _hub_errors(request: HubRequest) -> Iterator[None]:
    """Turn the hub client's exceptions into SourceErrors of one line, and keep its warnings off stderr."""
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils import logging as hub_logging
    from requests import RequestException

    verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity(logging.ERROR)
    try:
        yield
    except GatedRepoError as error:
        raise SourceError(
            f"{request.model_id}: gated. Accept its terms on the hub, then set HF_TOKEN to a token of that account."
        ) from error
    except RepositoryNotFoundError as error:
        raise SourceError(
            f"{request.model_id}: the hub has no such repository, or it is private. Check the spelling; "
            "for a private one set HF_TOKEN."
        ) from error
    except RevisionNotFoundError as error:
        raise SourceError(
            f"{request.model_id}: the hub has no revision {request.revision!r} of it. Check --revision."
        ) from error
    except RequestException as error:
        # Not by truth value: a response that reports an error is falsy.
        reason = type(error).__name__ if error.response is None else f"HTTP {error.response.status_code}"
        raise HubUnreachableError(
            f"{request.model_id}: the model hub cannot be reached ({reason}). {hub_free_hint()}"
        ) from error
    finally:
        hub_logging.set_verbosity(verbosity)
