"""The engine of adapters: what training left behind, run as PEFT runs it. Imported only inside the live worker.

Apart from `torch_engine`, since importing peft takes longer than importing torch and transformers together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from peft import PeftModel
from safetensors import safe_open

from handlers.validate.engines import EngineSpec
from handlers.validate.torch_engine import TorchEngine, load_model


class LiveEngine(TorchEngine):
    """The base in fp32 with the adapter applied at run time, not merged.

    The tokenizer is the checkpoint's own where it has one, else the base's.
    """

    adapted = True

    def _plain(self) -> Any:
        return self._model.get_base_model()

    def _load(self, spec: EngineSpec) -> Any:
        assert spec.base is not None
        pin = Path(spec.folder)
        self._tokenizer_folders = [pin, Path(spec.base)]
        base = load_model(Path(spec.base))
        _resize_as_saved(base, pin)
        return PeftModel.from_pretrained(base, str(pin), is_trainable=False)

    def bare_logits(self, input_ids: np.ndarray) -> np.ndarray:
        """Logits (S, V) float32 of ids (S,) with the adapter switched off."""
        ones = np.ones((1, len(input_ids)), dtype=np.int64)
        with self._model.disable_adapter():
            logits, _ = self.step(input_ids[None], ones, np.arange(len(input_ids), dtype=np.int64)[None], None)
        bare: np.ndarray = logits[0]
        return bare


def _resize_as_saved(base: Any, pin: Path) -> None:
    """Give the base the vocabulary that the adapter's saved embeddings have: training may have added tokens."""
    weights = pin / "adapter_model.safetensors"
    if not weights.is_file():
        return
    rows = base.get_input_embeddings().weight.shape[0]
    with safe_open(weights, framework="pt") as stream:
        for key in stream.keys():  # noqa: SIM118  safe_open is no mapping
            if key.endswith(("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")):
                saved = stream.get_slice(key).get_shape()[0]
                if saved != rows:
                    base.resize_token_embeddings(saved, mean_resizing=False)
                return
