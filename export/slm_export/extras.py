"""slm-export and slm-parity need more than the base install."""

from importlib.util import find_spec

from slm_runtime.errors import SourceError

NEEDED = ("torch", "transformers", "optimum", "onnx", "safetensors", "huggingface_hub", "gguf")


def require_export_extra() -> None:
    """Return when everything of the `[export]` extra is installed. Raises SourceError otherwise."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise SourceError(f"{', '.join(missing)} not installed; pip install 'slm-runtime[export]'")
