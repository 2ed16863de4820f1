"""Packages that the base install does not have."""

from importlib import import_module

from slm_runtime.errors import InputError


def require(package: str, *, extra: str, purpose: str) -> None:
    """Return when `package` can be imported. Raises InputError, which names the extra that installs it."""
    try:
        import_module(package)
    except ImportError as error:
        raise InputError(f"{purpose} needs {package} ({error}); pip install 'slm-runtime[{extra}]'") from error
