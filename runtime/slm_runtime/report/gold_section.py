"""From `Quality` to what the page says about it."""

import numpy as np

from slm_runtime.report.canvas import Picture
from slm_runtime.report.figures import confusion_matrix, share
from slm_runtime.report.gold import Answer, LabelQuality, NoLabel, Quality
from slm_runtime.report.page import NOTHING, Fact, GoldSection, plural, some_of, thousands

MATRIX_LABELS = 25
SHOWN_LABELS = 200
SHOWN_CONFUSIONS = 25
CONFUSIONS_BESIDE_MATRIX = 10
SHOWN_UNKNOWN = 25


def describe_quality(quality: Quality, column: str, *, labels_are_known: bool) -> GoldSection:
    """The section; call it inside `canvas.drawing()`. `labels_are_known` says that the task's labels were recorded."""
    occurring = [label for label in quality.labels if label.support or label.predicted]
    matrix = _matrix(quality, occurring)
    confusions = quality.confusions()
    shown = confusions[: SHOWN_CONFUSIONS if matrix is None else CONFUSIONS_BESIDE_MATRIX]
    return GoldSection(
        summary=_summary(quality, column, labels_are_known=labels_are_known),
        facts=_facts(quality, len(occurring)),
        labels=occurring[:SHOWN_LABELS],
        label_hint=_label_hint(len(occurring), len(quality.labels) - len(occurring)),
        matrix=matrix,
        confusions=shown,
        confusions_hint=some_of(len(shown), len(confusions), "pair") + " Rows without a label are not among them.",
        unknown=list(quality.unknown_gold.items())[:SHOWN_UNKNOWN],
        unknown_hint=some_of(min(len(quality.unknown_gold), SHOWN_UNKNOWN), len(quality.unknown_gold), "label")
        + " Their rows are left out above.",
    )


def _summary(quality: Quality, column: str, *, labels_are_known: bool) -> str:
    left_out = f"{plural(quality.num_without_gold, 'row')} without a gold label"
    if labels_are_known:
        left_out += f" and {plural(quality.num_unknown, 'row')} whose gold label is not one of the task's are left out."
    else:
        left_out += " are left out. The task's labels are not recorded, so that every gold label counts as one of them."
    return (
        f"Gold labels are those of the column \u201c{column}\u201d. {plural(quality.num_rows, 'row')} are judged; one "
        f"that failed or got no label counts as wrong. {left_out}"
    )


def _facts(quality: Quality, num_occurring: int) -> list[Fact]:
    accuracy, macro_f1 = quality.accuracy, quality.macro_f1
    right = sum(label.correct for label in quality.labels)
    failed, none = (quality.num_without_label(why) for why in (NoLabel.FAILED, NoLabel.BELOW_THRESHOLD))
    return [
        Fact(
            "accuracy", NOTHING if accuracy is None else f"{accuracy:.1%}", f"{right:,} of {quality.num_rows:,} right"
        ),
        Fact(
            "macro-F1",
            NOTHING if macro_f1 is None else f"{macro_f1:.3f}",
            f"mean of {plural(num_occurring, 'label')} that occur",
        ),
        Fact("judged, failed", thousands(failed), share(failed, quality.num_rows)),
        Fact("judged, below threshold", thousands(none), share(none, quality.num_rows)),
        Fact("without gold label", thousands(quality.num_without_gold), "left out"),
        Fact("gold not in task", thousands(quality.num_unknown), "left out"),
    ]


def _label_hint(num_occurring: int, num_unused: int) -> str:
    hint = f"{some_of(min(num_occurring, SHOWN_LABELS), num_occurring, 'label')[:-1]} that occur."
    return hint + (f" {plural(num_unused, 'label')} of the task do not." if num_unused else "")


def _matrix(quality: Quality, occurring: list[LabelQuality]) -> Picture | None:
    if not occurring or len(occurring) > MATRIX_LABELS:
        return None
    golds = [label.label for label in occurring if label.support]
    answers: list[Answer] = [label.label for label in occurring]
    answers += [why for why in NoLabel if quality.num_without_label(why)]
    counts = np.array([[quality.pairs.get((gold, answer), 0) for answer in answers] for gold in golds], dtype=np.int64)
    return confusion_matrix(golds, [_name(answer) for answer in answers], counts) if golds else None


def _name(answer: Answer) -> str:
    return f"({answer.value})" if isinstance(answer, NoLabel) else answer
