"""The engines of transformers folders that are no language models: encoder-decoders and encoders, on PyTorch.

Imported only inside workers. See `torch_engine` for what they share with language models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutput

from handlers.validate.engines.generation_rules import read_rules
from handlers.validate.engines.pytorch.torch_causal import TorchModel
from handlers.validate.engines.registry import EngineSpec


@dataclass(frozen=True)
class _State:
    """A source's encoding (B, S, H), its mask (B, S), None where all of it counts, and the decoder's cache."""

    memory: torch.Tensor
    mask: torch.Tensor | None
    cache: Any = None


class TorchSeq2Seq(TorchModel):
    """An encoder-decoder."""

    ways: tuple[str, ...] = ("model",)

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        plain = self._plain()
        generation = plain.generation_config.to_dict() if plain.generation_config else {}
        self.rules = read_rules(generation, plain.config.to_dict())
        self.end_tokens = self.rules.ends
        self.vocabulary = int(plain.get_output_embeddings().weight.shape[0])

    @torch.inference_mode()
    def start(self, input_ids: np.ndarray, attention_mask: np.ndarray) -> _State:
        mask = torch.from_numpy(attention_mask)
        with self._products():
            return _State(*self._encoded(input_ids, mask))

    def _encoded(self, input_ids: np.ndarray, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Give the encoding of sources, and the mask over it."""
        return self._plain().get_encoder()(input_ids=torch.from_numpy(input_ids), attention_mask=mask).last_hidden_state, mask

    @torch.inference_mode()
    def step(self, tokens: np.ndarray, state: _State, way: str) -> tuple[np.ndarray, _State]:
        with self._products():
            output = self._plain()(
                encoder_outputs=BaseModelOutput(last_hidden_state=state.memory),
                attention_mask=state.mask,
                decoder_input_ids=torch.from_numpy(tokens),
                past_key_values=state.cache,
                use_cache=True,
            )
        return output.logits.float().numpy(), replace(state, cache=output.past_key_values)


class TorchEncoder(TorchModel):
    """An encoder, with a head or without."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        config = self._plain().config
        width = {"feature-extraction": getattr(config, "hidden_size", None), "fill-mask": self.input_vocabulary, "question-answering": None}
        self.vocabulary = width.get(spec.task, getattr(config, "num_labels", None))
        self.segments = (getattr(config, "type_vocab_size", 0) or 1) if "token_type_ids" in self._takes else 1

    def run(self, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> tuple[np.ndarray, ...]:
        """See `EncoderEngine.run`; segments are left out for models that know none."""
        # Not through PEFT's wrapper of a whole model: the one for question answering drops the segments. The adapter's layers are inside.
        return self._outputs(self._plain(), input_ids, attention_mask, token_type_ids)

    @torch.inference_mode()
    def _outputs(self, model: Any, input_ids: np.ndarray, attention_mask: np.ndarray, token_type_ids: np.ndarray) -> tuple[np.ndarray, ...]:
        inputs: dict[str, Any] = {"input_ids": torch.from_numpy(input_ids), "attention_mask": torch.from_numpy(attention_mask)}
        if self.segments > 1:
            inputs["token_type_ids"] = torch.from_numpy(token_type_ids)
        if "use_cache" in self._takes:
            inputs["use_cache"] = False
        with self._products():
            output = model(**inputs)
        names = (
            ("start_logits", "end_logits") if "start_logits" in output else ("logits",) if "logits" in output else ("last_hidden_state",)
        )
        return tuple(output[name].float().numpy() for name in names)
