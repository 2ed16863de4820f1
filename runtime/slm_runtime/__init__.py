"""Classify tickets with a small language model on onnxruntime; see `Classifier`.

The names below are loaded when they are first used, so that `slm-run --help` need not wait for onnxruntime.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slm_runtime.calibration import Calibration
    from slm_runtime.classifier import Classifier
    from slm_runtime.options import RunOptions
    from slm_runtime.records import Prediction, Ticket
    from slm_runtime.task import Example, Task

_HOMES = {
    "Calibration": "calibration",
    "Classifier": "classifier",
    "Example": "task",
    "Prediction": "records",
    "RunOptions": "options",
    "Task": "task",
    "Ticket": "records",
}

__all__ = ["Calibration", "Classifier", "Example", "Prediction", "RunOptions", "Task", "Ticket"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"slm_runtime.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
