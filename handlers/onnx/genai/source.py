"""What the onnxruntime-genai builder is given: a folder with the merged model and its tokenizer, after checking that the builder supports
it.

Called by `genai`. The builder accepts some models and then builds them wrongly without an error (another scaling of the angles, a layer as
wide as the vocabulary), so the table below names only what agreed with torch, and the rest is refused.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from daemon.contract.models.configs import rope_type
from daemon.contract.values import Json
from handlers.families.base import architecture
from handlers.graphs.graph_file import fresh_folder
from handlers.models.files import Edits, copy_tokenizer, edited, read_json, setting
from handlers.models.folder import ModelFolder
from handlers.onnx.genai.format import ROPES

OPERATION = "build the onnxruntime-genai folder"

SUPPORTED = frozenset({
    "Ernie4_5ForCausalLM", "Gemma2ForCausalLM", "GemmaForCausalLM", "GraniteForCausalLM", "LlamaForCausalLM", "MistralForCausalLM",
    "NemotronForCausalLM", "Phi3ForCausalLM", "PhiForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
})  # fmt: skip
"""Architectures that the builder builds as torch computes them, with the scalings of rotary angles in `ROPES` of the declaration."""
_WINDOW_EVERYWHERE = ("MistralForCausalLM", "Phi3ForCausalLM")
"""Architectures whose sliding window, where there is one, is that of every layer."""
_EPSILONS = {"NemotronForCausalLM": "norm_eps", "PhiForCausalLM": "layer_norm_eps"}
"""Architecture → its key for the epsilon of its norms. The builder reads `rms_norm_eps` alone, and else takes 1e-6."""
_USUAL_EPSILON = 1e-5
"""Of both, where config.json has no such key."""


def unsupported(folder: Path, cause: str) -> Permanent:
    """The error for a model that the builder can't build, or builds wrongly."""
    return Permanent(
        FaultCode.UNSUPPORTED_ARCHITECTURE, OPERATION, cause, "leave the onnx-genai variants out of export.variants", path=folder
    )


def check_supported(folder: Path) -> None:
    """Permanent `unsupported-architecture` unless the builder builds the model of `folder` as torch computes it."""
    name = architecture(folder)
    config = read_json(folder / "config.json", OPERATION)
    if name not in SUPPORTED:
        raise unsupported(folder, f"{name} is not an architecture that onnxruntime-genai's builder is known to build correctly")
    if (scaling := rope_type(config)) not in dict(ROPES).get(str(config.get("model_type")), (scaling,)):
        raise unsupported(folder, f"onnxruntime-genai's builder does not build the {scaling!r} scaling of rotary angles of {name}")
    if wide := _as_wide_as_the_vocabulary(folder, config):
        raise unsupported(
            folder, f"{wide} has as many outputs as the vocabulary has tokens: the builder would treat it as the output layer"
        )


def _as_wide_as_the_vocabulary(folder: Path, config: Json) -> str | None:
    """The name of a matrix with one row a token that is neither embedding nor output layer."""
    model = ModelFolder(folder)
    if model.pickled:
        return None
    vocabulary = setting(config, "vocab_size")
    tables = ("embed_tokens.weight", "lm_head.weight")
    wide = (name for name, info in model.headers.items() if len(info.shape) == 2 and info.shape[0] == vocabulary)
    return next((name for name in wide if not name.endswith(tables)), None)


def prepare(context: StageContext) -> Path:
    """A folder below the stage's temporary one from which the builder reads: links to the weights, configuration, tokenizer.

    Permanent `tokenizer-not-found` where there is no tokenizer.json: onnxruntime-genai needs one.
    """
    source, folder = Path(context.inputs["merge"]), fresh_folder(Path(context.temporary) / "model")
    for name in ModelFolder(source).weight_names:
        (folder / name).symlink_to(os.path.realpath(source / name))
    config = read_json(source / "config.json", OPERATION)
    (folder / "config.json").write_text(json.dumps(edited(config, _edits(config)), indent=2), encoding="utf-8")
    if (source / "generation_config.json").is_file():
        shutil.copyfile(source / "generation_config.json", folder / "generation_config.json")
    copy_tokenizer(Path(context.pin), Path(context.base) if context.base else None, folder)
    if not (folder / "tokenizer.json").is_file():
        cause = "neither the checkpoint nor the base has a tokenizer.json, and onnxruntime-genai runs no model without one"
        raise Permanent(
            FaultCode.TOKENIZER_NOT_FOUND,
            OPERATION,
            cause,
            "put a fast tokenizer (tokenizer.json) into the base's folder",
            path=Path(context.pin),
        )
    return folder


def _edits(config: Json) -> Edits:
    """Keys that the builder reads and the model's configuration lacks; the published folder keeps that configuration as it is."""
    name = (config.get("architectures") or [""])[0]
    edits: Edits = {}
    if name in _WINDOW_EVERYWHERE and config.get("sliding_window") and "layer_types" not in config:
        edits["layer_types"] = ["sliding_attention"] * int(config["num_hidden_layers"])  # without it the window would be left out
    if name in _EPSILONS:
        edits["rms_norm_eps"] = config.get(_EPSILONS[name], _USUAL_EPSILON)
    if name == "Phi3ForCausalLM":
        edits["original_max_position_embeddings"] = config.get("max_position_embeddings")  # else it looks for a second set of rope factors
    return edits


def narrowest_block(folder: Path, wanted: int) -> int | None:
    """The largest block size up to `wanted` with which every matrix has an even number of blocks in a row; None where none has.

    The quantizer packs two zero points into a byte and fails where a row has an odd number of them.
    """
    model = ModelFolder(folder)
    if model.pickled:
        return wanted
    inner = {info.shape[1] for info in model.headers.values() if len(info.shape) == 2}
    sizes = (size for size in (128, 64, 32, 16) if size <= wanted)
    return next((size for size in sizes if all(-(-width // size) % 2 == 0 for width in inner)), None)
