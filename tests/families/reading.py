"""How far what was published is from the live model, by transformers and onnxruntime alone, in a process that imports nothing of ckptd.

Run as `python -m tests.families.reading ORDERS`, where ORDERS is a JSON file with `[family, live.safetensors, folder, answer]` for each
published folder: the largest difference of logits, in standard deviations of the live model's, goes to the file `answer` as a number, or
what the reader says as a text.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import transformers
from safetensors.torch import load_file

from tests.families.stock import inputs, outputs
from tests.families.table import AUTO

TYPES: dict[str, Any] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(float)": np.float32, "tensor(bool)": np.bool_}


def read(family: str, live: Path, folder: Path) -> float:
    """The difference of one folder."""
    known = load_file(live)["live"].numpy()
    graphs = sorted(path.name for path in folder.glob("*.onnx"))
    if graphs:
        mine = _graphs(folder, family, graphs)
    else:
        loader = getattr(transformers, AUTO[family.partition("/")[2]])
        mine = outputs(loader.from_pretrained(folder, dtype=torch.float32), family).numpy()
    return float(np.abs(mine - known).max() / known.std())


def _graphs(folder: Path, family: str, graphs: list[str]) -> np.ndarray:
    """The logits of graphs: of one, or of an encoder and a decoder that begins without a past."""
    given = {name: tensor.numpy() for name, tensor in inputs(family).items()}
    if graphs == ["model.onnx"]:
        return _run(folder / "model.onnx", given)
    states = _run(folder / "encoder_model.onnx", given)
    decoder = folder / next(name for name in ("decoder_model.onnx", "decoder_model_merged.onnx") if name in graphs)
    mask = np.ones_like(given["input_ids"])
    return _run(decoder, {"input_ids": given["decoder_input_ids"], "encoder_hidden_states": states, "encoder_attention_mask": mask})


def _run(path: Path, given: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    ids = given["input_ids"]
    usual = {"attention_mask": np.ones_like(ids), "position_ids": np.arange(ids.shape[1])[None].repeat(len(ids), 0)}
    usual["token_type_ids"] = np.zeros_like(ids)
    feeds = {}
    for port in session.get_inputs():
        sizes = [size if isinstance(size, int) else (len(ids) if place == 0 else 0) for place, size in enumerate(port.shape)]
        value = {**usual, **given}.get(port.name, np.zeros(sizes))  # a past of no tokens; no branch for a past
        feeds[port.name] = np.asarray(value, dtype=TYPES[port.type])
    answer: np.ndarray = session.run([session.get_outputs()[0].name], feeds)[0]
    return answer


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name, reference, published, target in json.loads(Path(sys.argv[1]).read_text()):
        try:
            said: float | str = read(name, Path(reference), Path(published))
        except Exception as error:  # whatever a reader says: the test reads it
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        Path(target).write_text(json.dumps(said))
    assert not {"daemon", "handlers"} & sys.modules.keys()
