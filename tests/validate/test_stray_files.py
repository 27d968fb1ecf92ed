"""Files of an artifact that its format does not declare, or that the checkpoint lacks, are told by name; what is loaded is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.formats.catalog import catalog
from handlers.validate.files import stray
from handlers.validate.files.expected import Expected
from handlers.validate.workers.protocol import Transcribe

ASKED = Transcribe(texts=[], pairs=[], digested=[], sequences=[])
KNOWN = Expected(asked=ASKED, present=["generation_config.json", "tokenizer.json", "tokenizer_config.json", "merges.txt"])
GRAPH = b"\x12\x0fmodel.onnx.data\x1a"
"""A text of 15 bytes, as protobuf writes it."""


def written(folder: Path, **files: Any) -> Path:
    """A folder of files; `__` stands for a folder's bar, values that are neither text nor bytes are written as JSON."""
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            content if isinstance(content, bytes) else content.encode() if isinstance(content, str) else json.dumps(content).encode()
        )
    return folder


def told(variant: str, folder: Path, wanted: Expected = KNOWN) -> list[str]:
    """The files that are told."""
    return [name for name, _ in stray.faults(folder, catalog().files[variant], wanted)]


SOUND = {
    "pytorch": [
        {"config.json": {}, "generation_config.json": {}, "model.safetensors": "", "tokenizer.json": {}, "README.md": ""},
        {"model.safetensors.index.json": {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}},
         "model-00001-of-00002.safetensors": "", "model-00002-of-00002.safetensors": ""},
    ],
    "onnx": [
        {"model.onnx": GRAPH, "model.onnx.data": "", "example.py": "", "tokenizer_config.json": {}},
        {"graphs.json": {"graphs": [{"file": "embedding.onnx"}, {"file": "model.onnx", "data": ["all.onnx_data"]}]}, "model.onnx": "",
         "embedding.onnx": "", "all.onnx_data": ""},
    ],
    "onnx-genai-fp32": [
        {"genai_config.json": {"model": {"decoder": {"filename": "model.onnx"}}}, "model.onnx": GRAPH, "model.onnx.data": ""},
    ],
    "web": [{"graphs.json": {"graphs": [{"file": "onnx/model.onnx", "data": ["onnx/model.onnx_data"]}]}, "onnx__model.onnx": "",
             "onnx__model.onnx_data": "", "app.js": "", "index.html": ""}],
    "gguf-f16": [{"model-f16.gguf": "", "Modelfile": "FROM ./model-f16.gguf\nPARAMETER num_ctx 4"}, {"model-f16.gguf": ""}],
    "coreml": [{"graphs.json": {"graphs": [{"file": "model.mlpackage"}]}, "model.mlpackage__Data__weights__weight.bin": "",
                "model.mlpackage__Manifest.json": {}}],
    "openvino": [{"graphs.json": {"graphs": [{"file": "openvino_model.xml", "data": ["openvino_model.bin"]}]}, "openvino_model.xml": "",
                  "openvino_model.bin": "", "openvino_tokenizer.xml": "", "openvino_tokenizer.bin": ""}],
    "pytorch-adapter": [{"adapter_config.json": {}, "adapter_model.safetensors": "", "adapter_base.json": {}, "tokenizer.json": {}}],
    "tensorrt-llm": [{"config.json": {}, "rank0.safetensors": "", "generation_config.json": {}}],
}  # fmt: skip


@pytest.mark.parametrize(("variant", "files"), [(variant, files) for variant, some in SOUND.items() for files in some])
def test_what_a_format_writes_is_not_told(variant: str, files: dict[str, Any], tmp_path: Path) -> None:
    assert told(variant, written(tmp_path, **files)) == []


STRAY = (
    ("pytorch", "consolidated.safetensors"), ("pytorch", "model-00002-of-00003.safetensors"), ("pytorch", "pytorch_model.bin"),
    ("pytorch", "adapter_config.json"), ("pytorch", "custom_generate__generate.py"), ("pytorch", "modeling.py"), ("pytorch", "vocab.json"),
    ("pytorch", "modules.json"), ("pytorch", "1_Pooling__config.json"), ("pytorch", "preprocessor_config.json"),
    ("pytorch", "additional_chat_templates__tool_use.jinja"), ("pytorch", ".hidden"), ("onnx", "decoder_model_merged.onnx"),
    ("onnx", "model.onnx_data"), ("onnx", "onnxruntime.py"), ("onnx-genai-fp32", "other.onnx"), ("onnx-genai-fp32", "tokenizer.model"),
    ("web", "onnx__model_q4.onnx"), ("web", "onnx__model.onnx_data_1"), ("gguf-f16", "mmproj.gguf"), ("gguf-f16", "tokenizer.json"),
    ("coreml", "other.mlpackage__Manifest.json"), ("openvino", "openvino_decoder_model.xml"), ("openvino", "other.bin"),
    ("pytorch-adapter", "added_tokens.json"), ("pytorch-adapter", "model.safetensors"), ("tensorrt-llm", "rank1.safetensors"),
)  # fmt: skip


@pytest.mark.parametrize(("variant", "name"), STRAY)
def test_a_file_more_is_told(variant: str, name: str, tmp_path: Path) -> None:
    folder = written(tmp_path, **SOUND[variant][-1 if variant == "onnx" else 0])
    assert told(variant, written(folder, **{name: ""})) == [name.replace("__", "/")]


def test_a_single_file_beside_an_index_that_does_not_name_it_is_told(tmp_path: Path) -> None:
    """transformers takes `model.safetensors` first."""
    assert told("pytorch", written(tmp_path, **SOUND["pytorch"][1], **{"model.safetensors": ""})) == ["model.safetensors"]


def test_the_code_of_a_model_must_be_the_checkpoints(tmp_path: Path) -> None:
    folder = written(tmp_path / "artifact", **{"model.safetensors": "", "modeling.py": "A = 1"})
    same = stray.fingerprint(folder / "modeling.py")
    assert told("pytorch", folder, KNOWN.model_copy(update={"code": {"modeling.py": same}})) == []
    assert told("pytorch", folder, KNOWN.model_copy(update={"code": {"modeling.py": "0"}})) == ["modeling.py"]


def test_a_format_that_declares_no_files_and_an_older_reference_tell_nothing(tmp_path: Path) -> None:
    folder = written(tmp_path, **{"anything.bin": ""})
    assert stray.faults(folder, {}, KNOWN) == []
    assert stray.faults(folder, catalog().files["pytorch"], Expected()) == []
