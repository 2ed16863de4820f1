"""Inputs of a static graph, written independently of the runtime's own."""

from dataclasses import dataclass

import numpy as np

from slm_runtime.static_graph import StaticGraphSpec

MASKED = -3e4


@dataclass
class StaticRow:
    """A row of s tokens after p past ones: `embeds` [s, D], `positions` [s], `visible` [s, p + s]."""

    embeds: np.ndarray
    positions: np.ndarray
    visible: np.ndarray
    past: dict[str, np.ndarray]  # [Hkv, p, Dh] each

    def feeds(self, spec: StaticGraphSpec, inverse_frequencies: np.ndarray) -> dict[str, np.ndarray]:
        """Padded with junk where the graph must not look, and with zeros where it may."""
        dtype = {"fp32": np.float32, "fp16": np.float16}[spec.precision]
        size, seen = self.visible.shape[0], self.visible.shape[1] - self.visible.shape[0]
        hidden = np.zeros((spec.num_tokens, spec.hidden_size))
        hidden[:size] = self.embeds
        angles = np.zeros((spec.num_tokens, spec.head_dim // 2), np.float32)  # as transformers computes them
        angles[:size] = self.positions[:, None].astype(np.float32) * inverse_frequencies
        mask = np.full((spec.num_tokens, spec.past_len + spec.num_tokens), MASKED)
        mask[np.arange(spec.num_tokens), spec.past_len + np.arange(spec.num_tokens)] = 0
        mask[:size, :seen][self.visible[:, :seen]] = 0
        mask[:size, spec.past_len : spec.past_len + size][self.visible[:, seen:]] = 0
        feeds = {
            "hidden": hidden,
            "cos": np.tile(np.cos(angles), 2) * spec.rope_scaling,
            "sin": np.concatenate([-np.sin(angles), np.sin(angles)], axis=1) * spec.rope_scaling,
            "mask": mask,
        }
        for name, array in self.past.items():
            padded = np.full((spec.num_kv_heads, spec.past_len, spec.head_dim), 7.0)
            padded[:, :seen] = array
            feeds[name] = padded
        return {name: array.astype(dtype) for name, array in feeds.items()}


def causal(size: int, past: int) -> np.ndarray:
    """[size, past + size]: every token sees the past, itself and those before it."""
    return np.tri(size, past + size, past, dtype=bool)
