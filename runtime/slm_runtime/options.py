"""How a run is carried out. Nothing here changes a label, apart from the token limit."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from slm_runtime.defaults import DEFAULT_BATCH_TOKENS, DEFAULT_WINDOW
from slm_runtime.errors import InputError
from slm_runtime.planning import Strategy

Truncate = Literal["error", "left", "right"]


@dataclass(frozen=True)
class RunOptions:
    """`max_tokens` limits the whole prompt (None: its instructions and `DEFAULT_TICKET_TOKENS` more), `batch_tokens`
    what one call of the model processes, `window` how many tickets are planned together (and held in memory). With
    `all_scores` every label of a large set is scored in full, also where it cannot win any more.

    Raises:
        InputError: a value that makes no sense.
    """

    strategy: Strategy = "packed"
    prefix_cache: bool = True
    dedupe: bool = True
    all_scores: bool = False
    batch_tokens: int = DEFAULT_BATCH_TOKENS
    max_tokens: int | None = None
    truncate: Truncate = "right"
    window: int = DEFAULT_WINDOW

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "max_tokens", "window"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise InputError(f"{name} is {value}, expected at least 1")
        for name, kind in (("strategy", Strategy), ("truncate", Truncate)):
            if (choice := getattr(self, name)) not in get_args(kind):
                raise InputError(f"{name} {choice!r} is unknown, expected one of {', '.join(get_args(kind))}")


@dataclass
class RunCounts:
    """What a run did; counts grow while it runs. Tokens are those the model processed, prefix included once.

    `prefix_saved_tokens` and `tree_saved_tokens` were not processed because the prefix was cached, or because tickets
    share their beginnings. `call_sizes` counts the calls of the decoder by their tokens, padding included;
    `real_by_length` and `processed_by_length` add up their tokens by S, the padded length of their rows.
    `decoder_s` is the time in it, `model_s` with the log-normaliser. `recalled` rows were finished by an earlier,
    interrupted run: they are counted as rows, but no token of them was processed by this one. `changed` are distinct
    tickets whose int8 label the fp32 decoder overruled. `cpu_sequences` are distinct prompts that did not fit the
    CoreML graphs of a run with `--provider auto` and were scored on the CPU.
    """

    rows: int = 0
    errors: int = 0
    truncated: int = 0
    duplicates: int = 0
    rechecked: int = 0
    changed: int = 0
    recalled: int = 0
    cpu_sequences: int = 0
    prompt_tokens: int = 0
    real_tokens: int = 0
    processed_tokens: int = 0
    model_s: float = 0.0
    prefix_saved_tokens: int = 0
    tree_saved_tokens: int = 0
    call_sizes: dict[int, int] = field(default_factory=dict)
    real_by_length: dict[int, int] = field(default_factory=dict)
    processed_by_length: dict[int, int] = field(default_factory=dict)
    decoder_s: float = 0.0
    labels: dict[str, int] = field(default_factory=dict)

    def note_call(self, seconds: float, real_tokens: int, processed_tokens: int, length: int) -> None:
        """Count one call of the decoder."""
        self.model_s += seconds
        self.decoder_s += seconds
        self.real_tokens += real_tokens
        self.processed_tokens += processed_tokens
        self.call_sizes[processed_tokens] = self.call_sizes.get(processed_tokens, 0) + 1
        self.real_by_length[length] = self.real_by_length.get(length, 0) + real_tokens
        self.processed_by_length[length] = self.processed_by_length.get(length, 0) + processed_tokens

    @property
    def padding_share(self) -> float:
        """Padding tokens as a share of the processed ones."""
        if not self.processed_tokens:
            return 0.0
        return 1 - self.real_tokens / self.processed_tokens
