"""The result of a tuning as a table for people."""

from slm_runtime.tune import Tuning, Variant
from slm_runtime.tune_metrics import NUM_BINS, Quality

NAMES: dict[Variant, str] = {"before": "before", "content_free": "content-free prior", "fitted": "fitted"}


def tuning_table(tuning: Tuning) -> str:
    """Both halves, one line per variant; coverage and accuracy of accepted rows where a threshold was fitted."""
    head = f"{'':<22}{'accuracy':>9}{'macro-F1':>10}{'calib. error':>14}{'log-loss':>10}"
    if tuning.threshold is not None:
        head += f"{'coverage':>10}{'accuracy of accepted':>22}"
    lines = []
    for title, half in (("held back", tuning.held_back), ("fitted on", tuning.fit)):
        lines.append(f"{title}, {half['before'].num_rows} rows")
        lines.append(head)
        lines += [_line(NAMES[variant], quality) for variant, quality in half.items()]
    prior = tuning.calibration.prior
    facts = f"temperature {tuning.calibration.temperature:g}, priors from {min(prior):g} to {max(prior):g} nats"
    if tuning.threshold is not None:
        facts += f", threshold {tuning.threshold:g}"
    lines.append(f"{facts}; calibration error over {NUM_BINS} bins of equal width, log-loss in nats")
    return "\n".join(lines) + "\n"


def _line(name: str, quality: Quality) -> str:
    line = (
        f"  {name:<20}{quality.accuracy:>9.1%}{quality.macro_f1:>10.3f}"
        f"{quality.calibration_error:>14.3f}{quality.log_loss:>10.3f}"
    )
    if quality.coverage is None:
        return line
    accepted = "none" if quality.accepted_accuracy is None else f"{quality.accepted_accuracy:.1%}"
    return f"{line}{quality.coverage:>10.1%}{accepted:>22}"
