"""The rules of `coreml_rules.toml`, typed."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from slm_runtime.errors import InputError


@dataclass(frozen=True)
class OperatorRule:
    """What one operator must be like; the fields are explained in the rules' file."""

    since_onnxruntime: str = "0"
    min_since: int = 1
    first_input: tuple[str, ...] = ()
    constants: tuple[int, ...] = ()
    same_type: tuple[int, ...] = ()
    attributes: Mapping[str, float] = field(default_factory=dict)
    min_inputs: int = 0
    max_outputs: int | None = None
    forbidden: bool = False
    advised: Mapping[str, float] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True)
class Policy:
    """What the project allows itself; types are names of ONNX data types, names are regular expressions."""

    operators: frozenset[str]
    graph_values: tuple[str, ...]
    max_rank: int
    max_dim: int
    max_constant_bytes: int
    value_name: str
    cache_key: str
    opset: int
    ir_version: int


@dataclass(frozen=True)
class Rules:
    """What the provider takes (`operators` that it does not know are missing), and the policy."""

    minimum_onnxruntime: str
    first_input: tuple[str, ...]
    graph_values: tuple[str, ...]
    max_input_rank: int
    max_since_version: Mapping[str, int]
    operators: Mapping[str, OperatorRule]
    policy: Policy

    def newest_operator_version(self, onnxruntime: str) -> int:
        """The newest operator version that this onnxruntime's provider takes."""
        known = {as_version(release): limit for release, limit in self.max_since_version.items()}
        return known[max(release for release in known if release <= as_version(onnxruntime))]

    def operator(self, name: str, onnxruntime: str) -> OperatorRule | None:
        """The rule of an operator, None where this onnxruntime's provider does not know it."""
        rule = self.operators.get(name)
        return rule if rule and as_version(rule.since_onnxruntime) <= as_version(onnxruntime) else None

    def require_known(self, onnxruntime: str) -> None:
        """Return when there are rules for this version. Raises InputError."""
        try:
            version = as_version(onnxruntime)
        except ValueError:
            version = ()
        if version < as_version(self.minimum_onnxruntime):
            raise InputError(
                f"onnxruntime {onnxruntime!r}: there are rules from {self.minimum_onnxruntime} on; "
                "give versions like 1.24.4,1.32.0"
            )


def as_version(text: str) -> tuple[int, ...]:
    """(1, 24, 4) for "1.24.4". Raises ValueError."""
    return tuple(int(part) for part in text.split("."))


@cache
def load_rules() -> Rules:
    """The rules of the file that lies beside this module."""
    data = tomllib.loads(files(__package__).joinpath("coreml_rules.toml").read_text(encoding="utf-8"))
    operators = {name: OperatorRule(**_as_tuples(rule)) for name, rule in data.pop("operators").items()}
    policy = data.pop("policy")
    return Rules(
        **_as_tuples(data),
        operators=operators,
        policy=Policy(operators=frozenset(policy.pop("operators")), **_as_tuples(policy)),
    )


def _as_tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
