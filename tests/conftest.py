"""What all tests share: they leave the user's cache alone."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Examples are judged by what they find, not by how busy the machine is.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

USER_CACHE = os.environ.get("SLM_CACHE_DIR")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Stamps and prepacked copies of throw-away bundles do not belong into the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLM_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def user_cache() -> Iterator[None]:
    """For tests of real weights, which are fetched once and kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SLM_CACHE_DIR")
        if USER_CACHE is not None:
            patch.setenv("SLM_CACHE_DIR", USER_CACHE)
        yield
