"""The label tree: every label as a path of tokens after the prompt, shared beginnings once.

Node 0 is the prompt's last token. A step is one decision of the model: which token follows a node. A label is the steps
along its path and, where the rule asks for it, the step to the end-of-turn token. Only nodes with a step that counts
have to be computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from slm_runtime.errors import LabelError
from slm_runtime.task import Scoring
from slm_runtime.tokenizer import TokenIds

Rule = Literal["first-token", "sequence", "constrained"]


@dataclass(frozen=True)
class Step:
    """Token `token_id` follows node `node`, counted for the labels in `labels` (indices)."""

    node: int
    token_id: int
    labels: tuple[int, ...]


@dataclass(frozen=True)
class LabelTree:
    """`token_ids[n]` and `parents[n]` belong to node n + 1, depth first: a parent comes before its children.

    `steps` are grouped by node, in ascending order; `scored_nodes` are the nodes that have steps.
    """

    rule: Rule
    num_labels: int
    token_ids: TokenIds
    parents: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def scored_nodes(self) -> tuple[int, ...]:
        return tuple(sorted({step.node for step in self.steps}))


def choose_rule(scoring: Scoring, label_tokens: Sequence[TokenIds], labels: Sequence[str]) -> Rule:
    """The rule that `scoring` means for these labels.

    Raises:
        LabelError: `first-token` was asked for and two labels begin with the same token.
    """
    first: dict[int, str] = {}
    clash = None
    for name, tokens in zip(labels, label_tokens, strict=True):
        clash = clash or ((first[tokens[0]], name, tokens[0]) if tokens[0] in first else None)
        first.setdefault(tokens[0], name)
    if scoring == "auto":
        return "sequence" if clash else "first-token"
    if scoring == "first-token" and clash:
        raise LabelError(
            f"first-token scoring cannot tell {clash[0]!r} from {clash[1]!r}: both begin with token {clash[2]}; "
            "use --scoring sequence or constrained, or rename one"
        )
    return scoring


def build_label_tree(rule: Rule, label_tokens: Sequence[TokenIds], end_of_turn_id: int) -> LabelTree:
    """The tree of `label_tokens` with the steps that `rule` counts.

    first-token: the first step of every label. sequence: every step, end of turn included. constrained: every step
    that leaves a choice between labels, end of turn included.
    """
    if rule == "first-token":
        steps = tuple(Step(0, tokens[0], (label,)) for label, tokens in enumerate(label_tokens))
        return LabelTree(rule, len(label_tokens), (), (), steps)
    paths = [(*tokens, end_of_turn_id) for tokens in label_tokens]
    members: dict[TokenIds, list[int]] = {}
    for label, path in enumerate(paths):
        for length in range(1, len(path) + 1):
            members.setdefault(path[:length], []).append(label)
    choices: dict[TokenIds, list[TokenIds]] = {}
    for node_path in members:
        choices.setdefault(node_path[:-1], []).append(node_path)
    counted = {n: c for n, c in choices.items() if rule == "sequence" or len(c) > 1}
    needed = sorted({path[:length] for path in counted for length in range(1, len(path) + 1)})
    index = {(): 0} | {path: i for i, path in enumerate(needed, start=1)}
    steps = tuple(
        Step(index[path], child[-1], tuple(members[child]))
        for path in sorted(counted, key=index.__getitem__)
        for child in counted[path]
    )
    return LabelTree(
        rule,
        len(label_tokens),
        tuple(path[-1] for path in needed),
        tuple(index[path[:-1]] for path in needed),
        steps,
    )
