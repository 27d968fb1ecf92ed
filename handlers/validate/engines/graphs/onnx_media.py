"""The engine of ONNX folders of encoders of pictures and sounds: onnxruntime, and the processor that lies in the folder.

Used inside workers. Inputs are what transformers' processor of the folder gives, as its users prepare them; the graph must take them all
by their names. Of more than one row they are one batch, which is filled up by the processor.
"""

from __future__ import annotations

import numpy as np
from onnxruntime import OrtValue

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.models.tasks import BY_NAME
from handlers.validate.engines.graphs.onnx_folder import AGAIN, OPERATION, LoadedGraph, OnnxFolder, floats
from handlers.validate.engines.media import processors
from handlers.validate.engines.media.numbered import NumberedMedia, as_rows, of_towers
from handlers.validate.engines.registry import EngineSpec

TOWERS = ("image_embeds", "text_embeds")
_OUTPUTS = ("logits", "last_hidden_state")


class Prepared:
    """A folder whose processor prepares what its graphs are fed."""

    def __init__(self, folder: OnnxFolder, task: str) -> None:
        media = BY_NAME[task].media
        assert media is not None
        self._media, self._processor = media, processors.load([folder._folder], media)

    def feeds(self, graph: LoadedGraph, *numbers: int) -> dict[str, OrtValue]:
        """Give inputs by name. Permanent where the processor lacks an input of the graph."""
        arrays = dict(processors.prepared(self._processor, self._media, *numbers, tensors="np"))
        if lost := sorted(set(graph.inputs) - set(arrays)):
            cause = f"it takes {', '.join(lost)}, which the processor in its folder does not give"
            raise Permanent(FaultCode.GRAPH_UNEXPECTED, OPERATION, cause, AGAIN, path=graph.path)
        return {name: graph.value(name, arrays[name]) for name in graph.inputs}


class OnnxMedia(NumberedMedia, OnnxFolder):
    """One graph, one pass."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self._model = self._graph("model", spec.threads)
        single = _OUTPUTS[0] if BY_NAME[spec.task].name.endswith(("classification", "ctc")) else _OUTPUTS[1]
        self._given = TOWERS if TOWERS[0] in self._model.outputs else (single,)
        self._model.check_names("an encoder of pictures or sound", (), self._given, self._model.inputs)
        self.vocabulary = self.context_length = None
        self.pad = 0
        self._prepared = Prepared(self, spec.task)

    def token_ids(self, text: str) -> list[int]:
        """Give what the folder's tokenizer makes of a text, where it has one: `encode` reads names of pictures and sounds."""
        return self._loaded_tokenizer().encode(text)

    def _outputs_of(self, *numbers: int) -> np.ndarray:
        outputs = self._model.run([*self._given], self._prepared.feeds(self._model, *numbers))
        vectors = [floats(outputs[name]) for name in self._given]
        return of_towers(*vectors) if vectors[1:] else as_rows(vectors[0])
