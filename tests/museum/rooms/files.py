"""Files beside the weights that do not say what the checkpoint's say."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged
from tests.museum.makers import Tensors, like, weights


def _halve(tensors: Tensors) -> None:
    tensors.update({name: tensor.half() for name, tensor in tensors.items()})


EXHIBITS = {
    "ends_of_a_runtime": Exhibit(
        bug="onnxruntime/mobius#521",
        name="end tokens of a runtime's own file",
        happened="The end tokens in genai_config.json were taken from config.json, and those of generation_config.json were left out.",
        mutant="genai_config.json has another end token",
        hall="chat",
        variant="onnx-genai-fp32",
        make=like("files", "the runtime's end"),
        check="finding: runtime",
        words=r"eos_token_id is \[5\] instead of 1",
    ),
    "generation_lost": Exhibit(
        bug="arcee-ai/mergekit#275",
        name="settings of generation that are lost",
        happened="A merge did not copy generation_config.json.",
        mutant="generation_config.json is missing",
        hall="chat",
        variant="onnx",
        make=like("files", "generation_config.json lost"),
        check="finding: generation",
        words=r"lacks generation_config.json",
        quick=True,
    ),
    "padding_of_a_runtime": Exhibit(
        bug="qualcomm/ai-hub-models#304",
        name="the padding token of a runtime's own file",
        happened="The padding token in genai_config.json fell back to the end tokens.",
        mutant="genai_config.json has another padding token",
        hall="chat",
        variant="onnx-genai-fp32",
        make=like("files", "the runtime's padding"),
        check="finding: runtime",
        words=r"pad_token_id is 4 instead of 0",
    ),
    "said_to_be_quantized": Exhibit(
        bug="huggingface/transformers#34847",
        name="a quantization_config that is left",
        happened="A model that was taken back to 16 bits kept its quantization_config, so that it could not be loaded, or was quantized"
        " once more.",
        mutant="config.json says that the weights are quantized",
        hall="chat",
        variant="pytorch",
        make=like("files", "weights that are said to be packed"),
        check="finding: config",
        words=r"says that its weights are quantized",
        quick=True,
    ),
    "type_of_the_weights": Exhibit(
        bug="axolotl-ai-cloud/axolotl#902",
        name="a merge in another type",
        happened="Every merge was saved in fp16, also where the training had been in bf16.",
        mutant="the weights are stored in fp16",
        hall="chat",
        variant="pytorch",
        make=damaged(weights(_halve)),
        check="finding: weights",
        words=r"its weights are not those of the merge",
    ),
    "weights_twice": Exhibit(
        bug="Blaizzy/mlx-vlm#1464",
        name="weights that lie there twice",
        happened="A loader took every `.safetensors` of a folder, and a file of 4-bit weights lay beside the shards in 16 bits.",
        mutant="the folder holds a shard that no index names",
        hall="chat",
        variant="pytorch",
        make=like("files", "a shard without an index"),
        check="finding: files",
        words=r"which no index and no graph of the folder names",
        quick=True,
    ),
}
