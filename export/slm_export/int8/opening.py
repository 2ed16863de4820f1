"""Keys and values of the tokens that every prompt begins with, from the fp32 decoder to the int8 one.

Method: the intact pivot tokens of IntactKV (arXiv 2403.01241), kept for the template's own tokens only.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch

from slm_export.decoder import DecoderLayer, PrefillStep
from slm_export.int8.rotation import mix_columns, value_mix
from slm_runtime.layout import shared_length
from slm_runtime.manifest import Manifest, OpeningSpec
from slm_runtime.model_input import chain_input
from slm_runtime.session import DecoderSession, empty_past
from slm_runtime.threads import usable_threads

OPENING_FILE = "opening-int8.npy"
# Attention rests on the very first tokens; those after them belong to a task rather than to the template.
MAX_TOKENS = 3


def write_opening(
    folder: Path, manifest: Manifest, step: PrefillStep, prompts: Sequence[Sequence[int]]
) -> OpeningSpec | None:
    """Write the opening of a quantised `step` to `folder`, which holds the fp32 decoder; None where there is none."""
    token_ids = tuple(prompts[0])
    for prompt in prompts:
        token_ids = token_ids[: min(MAX_TOKENS, shared_length(token_ids, tuple(prompt)))]
    if not token_ids:
        return None
    fp32 = DecoderSession(folder, manifest, manifest.decoder, num_threads=usable_threads(None))
    _, past = fp32.with_present(chain_input(np.array(token_ids, np.int64), 0), empty_past(fp32.spec))
    stored = np.concatenate(past.arrays)
    for number, module in enumerate(step.layers):
        layer = cast("DecoderLayer", module)
        rotated = mix_columns(torch.from_numpy(stored[2 * number + 1]).double(), value_mix(layer.arch))
        stored[2 * number + 1] = layer.mean.prepare(rotated.float()).numpy()
    np.save(folder / OPENING_FILE, stored)
    return OpeningSpec(token_ids, OPENING_FILE)
