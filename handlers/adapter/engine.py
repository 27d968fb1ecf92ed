"""The engines of a published adapter: its folder and the job's base, joined by PEFT. Imported only inside workers.

They differ from the live model's engines in what they read alone: the published folder, not the checkpoint. So what these answer otherwise
was lost or changed in publishing. The base takes the values that `merge.base` names, as it did for the live model.
"""

from __future__ import annotations

from typing import Any

from handlers.validate.engines.pytorch.live import Adapted, LiveEncoder, LiveEngine, LiveMediaEncoder, LiveMediaSeq2Seq, LiveSeq2Seq
from handlers.validate.engines.registry import EngineSpec


class _Published(Adapted):
    """An adapter's folder over its base."""

    def _load(self, spec: EngineSpec) -> Any:
        model = super()._load(spec)
        if spec.base_values != "original":
            self.rebase(spec.base_values)
        return model


class AdapterEngine(_Published, LiveEngine):
    """A language model."""


class AdapterSeq2Seq(_Published, LiveSeq2Seq):
    """An encoder-decoder."""


class AdapterEncoder(_Published, LiveEncoder):
    """An encoder, with a head or without."""


class AdapterMediaEncoder(_Published, LiveMediaEncoder):
    """An encoder of pictures or sounds."""


class AdapterMediaSeq2Seq(_Published, LiveMediaSeq2Seq):
    """An encoder of sounds with a decoder of text."""
