"""What scoring asks of a decoder, whichever provider runs it."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slm_runtime.coreml.room import Room
from slm_runtime.manifest import GraphSpec
from slm_runtime.model_input import ModelInput
from slm_runtime.session import Past

Float32 = NDArray[np.float32]


class Decoder(Protocol):
    """`room` says which rows and pasts fit, None: any. See `session.DecoderSession` for what a call gives."""

    @property
    def spec(self) -> GraphSpec: ...

    @property
    def precision(self) -> str: ...

    @property
    def provider(self) -> str: ...

    @property
    def num_threads(self) -> int: ...

    @property
    def room(self) -> Room | None: ...

    def last_hidden(self, model_input: ModelInput, past: Past) -> Float32: ...

    def with_present(self, model_input: ModelInput, past: Past) -> tuple[Float32, Past]: ...

    def processed_tokens(self, rows: int, length: int, past_len: int) -> int: ...

    def describe(self) -> list[dict[str, Any]]: ...
