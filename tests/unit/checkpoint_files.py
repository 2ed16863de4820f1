"""The smallest set of files that counts as a checkpoint; nothing here can be run as a model."""

import json

import numpy as np
from safetensors.numpy import save


def tiny_checkpoint_files() -> dict[str, bytes]:
    """Content by file name."""
    return {
        "config.json": b'{"model_type": "qwen2"}',
        "tokenizer.json": b"{}",
        "tokenizer_config.json": json.dumps({"chat_template": "{{ messages }}"}).encode(),
        "model.safetensors": save({"weight": np.zeros(4, np.float32)}),
        "README.md": b"---\nlicense: apache-2.0\n---\n# Tiny\n",
    }
