"""What two runs must have in common for one to continue the other."""

from collections.abc import Mapping

from slm_runtime.classifier import Classifier, TaskRunner
from slm_runtime.errors import InputError
from slm_runtime.survey import Survey

Identity = dict[str, str | int | None]


def run_identity(
    classifier: Classifier, runner: TaskRunner, survey: Survey, reading: Mapping[str, str | int | None]
) -> Identity:
    """Everything that decides which rows there are and what is answered to them; `reading`: how the input is read.

    Threads, strategy and budgets are not in it: they change how a label is computed, not which.
    """
    return configuration(classifier, runner) | {"input": survey.sha256, **reading}


def configuration(classifier: Classifier, runner: TaskRunner) -> Identity:
    """What decides the answer to a row, whatever input it comes from."""
    return {
        "model": classifier.bundle.manifest.digest,
        "task": runner.task.digest,
        "scoring": runner.rule,
        "precision": runner.precision,
        "margin bound": None if runner.bound is None else repr(runner.bound.bound),
        "token limit": runner.max_tokens,
        "truncation": runner.options.truncate,
    }


def check_identity(output: str, before: Identity, now: Identity) -> None:
    """Return when the run that wrote `before` is this one.

    Raises:
        InputError: names everything that changed.
    """
    changed = [name for name in now if before.get(name) != now[name]]
    if changed:
        details = "; ".join(f"{name} was {_short(before.get(name))}, is {_short(now[name])}" for name in changed)
        raise InputError(
            f"{output}: cannot resume, this is not the run that was interrupted: {details}. "
            "Give the same ones again, or start over with --overwrite"
        )


def _short(value: str | int | None) -> str:
    return "not given" if value is None else f"{value:.16}" if isinstance(value, str) else str(value)
