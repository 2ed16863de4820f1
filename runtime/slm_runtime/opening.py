"""The first tokens of every prompt on the int8 decoder: their keys and values are fp32's, computed at export.

Attention rests on them wherever it has nothing else to look at, so an error there is an error everywhere.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slm_runtime.errors import FormatError
from slm_runtime.manifest import GraphSpec, OpeningSpec
from slm_runtime.session import Past
from slm_runtime.tokenizer import TokenIds


@dataclass(frozen=True)
class Opening:
    """`token_ids`, and the past after them."""

    token_ids: TokenIds
    past: Past


def read_opening(folder: Path, spec: OpeningSpec, graph: GraphSpec) -> Opening:
    """The opening of a bundle's int8 decoder.

    Raises:
        FormatError: the file is not what the manifest says.
    """
    path = folder / spec.file
    try:
        stored = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: cannot be read ({error}); export the bundle again") from error
    shape = (len(graph.past_names()), graph.num_kv_heads, len(spec.token_ids), graph.head_dim)
    if stored.shape != shape or stored.dtype != np.float32:
        raise FormatError(
            f"{path}: holds {stored.dtype} {list(stored.shape)}, expected float32 {list(shape)}; "
            "export the bundle again"
        )
    stored.setflags(write=False)
    return Opening(spec.token_ids, Past(tuple(stored[:, None])))
