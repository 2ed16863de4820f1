"""What the peers do with prompts that are already tokens."""

from collections.abc import Sequence

TokenRows = Sequence[list[int]]


def shared_prefix_len(rows: TokenRows) -> int:
    """How many tokens all rows start with; at least one of each is left to run."""
    first, last = min(rows), max(rows)  # lexicographic extremes differ first
    limit = min(map(len, rows)) - 1
    return next((i for i in range(limit) if first[i] != last[i]), limit)
