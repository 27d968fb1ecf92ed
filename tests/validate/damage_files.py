"""Damages of the files beside the weights, one file and one fault each: what validation must catch, and by which words.

`python -m tests.validate.damage_files` runs all of them and prints what was caught; `test_damage_files.py` runs them as tests. A case
without words is harmless: what users get of it is what they get of the sound folder.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from handlers.graphs.graphset import Graph, GraphSet
from handlers.onnx.genai import int4
from handlers.onnx.genai import stage as genai
from tests.onnx.conftest import make_context, silent
from tests.validate import artifacts, sabotage, test_sentence_transformers, zoo
from tests.validate.bench import Bench, measured
from tests.validate.test_encoders import SEQUENCE, classify

Damage = Callable[[Path], None]
TOKENIZER, TOKENIZER_CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
GENAI = {"onnx-genai-fp32": genai.fp32, "onnx-genai-int4": int4.run}
COMPRESSED = ("pytorch-w8a8", "pytorch-w4a16")
CAUSAL = ("onnx", "onnx-int8", "pytorch", "pytorch-w8a8", *GENAI)
TEMPLATE_TEXT = (
    "{% if tools %}<|tools|>{{ tools | tojson }}{% endif %}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is false %}<|none|>{% endif %}{% endif %}"
)
GENERATION = {"max_new_tokens": 16, "repetition_penalty": 1.1, "bad_words_ids": [[7]], "suppress_tokens": [9], "top_k": 20, "min_length": 1}


@dataclass(frozen=True)
class Case:
    """One damage."""

    name: str
    on: tuple[str, ...]
    """What it is done to: variants of the language model, or "classifier", "translator" and "sentences"."""
    damage: Damage
    words: str | None
    """A regular expression for one of the reasons; None where the damage changes nothing for users."""


def edit(file: str, change: Callable[[Any], Any]) -> Damage:
    """Change the JSON value of a file, in place or to what is returned."""

    def damage(folder: Path) -> None:
        value = json.loads((folder / file).read_text())
        changed = change(value)
        (folder / file).write_text(json.dumps(value if changed is None else changed))

    return damage


def keys(file: str, **values: Any) -> Damage:
    """Set keys of a JSON file; those of None are taken away."""
    return edit(file, lambda value: {key: one for key, one in {**value, **values}.items() if one is not None})


def within(file: str, part: str, **values: Any) -> Damage:
    """Set keys of an object inside of a JSON file."""
    return edit(file, lambda value: {**value, part: {**value[part], **values}})


def lose(file: str) -> Damage:
    """Delete a file."""
    return lambda folder: (folder / file).unlink()


def plant(file: str, content: Any = "x") -> Damage:
    """Write a file that is not there; what is no text as JSON."""

    def damage(folder: Path) -> None:
        path = folder / file
        assert not path.exists(), path
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))

    return damage


def text(file: str, before: str, after: str) -> Damage:
    """Replace a part of a file's text."""

    def damage(folder: Path) -> None:
        found = (folder / file).read_text()
        assert before in found
        (folder / file).write_text(found.replace(before, after))

    return damage


def listed(damage: Damage) -> Damage:
    """The damage of a folder that says in graphs.json which graphs it holds."""
    roles = {
        "model.onnx": "model", "encoder_model.onnx": "encoder", "decoder_model.onnx": "decoder",
        "decoder_with_past_model.onnx": "decoder_with_past",
    }  # fmt: skip

    def damaged(folder: Path) -> None:
        graphs = tuple(Graph(role=role, file=name) for name, role in roles.items() if (folder / name).is_file())
        GraphSet(task="text-generation", family="causal", dtype="float32", opset=18, graphs=graphs).write(folder)
        damage(folder)

    return damaged


def _copied(file: str, name: str) -> Damage:
    """A file once more under another name."""
    return lambda folder: shutil.copyfile(folder / file, folder / name) and None


def _other_index(folder: Path) -> None:
    """An index of a file of the same weights, which transformers reads only where `model.safetensors` is not there; others do not."""
    (folder / "model-00001-of-00001.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with safe_open(folder / "model.safetensors", "numpy") as weights:
        table = dict.fromkeys(weights.keys(), "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))


def scheme(*path: str, **values: Any) -> Damage:
    """Set keys of the quantization_config, inside of the objects of `path`."""

    def change(value: Any) -> None:
        for key in ("quantization_config", *path):
            value = value[key]
        value.update(values)

    return edit("config.json", change)


def said_to_be_packed(folder: Path) -> None:
    """Say of weights in 16 bits that they are packed."""
    said = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}}
    zoo.edit_json(folder / "config.json", quantization_config=said)


GROUP = ("config_groups", "group_0")
ACTIVATIONS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True, "observer": None}


def _swap_ids(value: Any) -> None:
    vocabulary = value["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def _lose_merges(count: int) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        del value["model"]["merges"][-count:]

    return change


def _swap_merges(value: Any) -> None:
    merges = value["model"]["merges"]
    merges[0], merges[-1] = merges[-1], merges[0]


def _drop_added(value: Any) -> None:
    value["added_tokens"] = [one for one in value["added_tokens"] if one["content"] != "<|end|>"]


def _shift_added(value: Any) -> None:
    for one in value["added_tokens"]:
        if one["content"] == "<|end|>":
            one["id"] = 2
    vocabulary = value["model"]["vocab"]
    other = next(token for token, number in vocabulary.items() if number == 2)
    vocabulary["<|end|>"], vocabulary[other] = 2, 1


def _plain_added(value: Any) -> None:
    value["added_tokens"][1]["special"] = False


def _strip_added(value: Any) -> None:
    value["added_tokens"][1]["rstrip"] = True


def _more_added(value: Any) -> None:
    value["added_tokens"].append({**value["added_tokens"][1], "id": 320, "content": "<|more|>"})


def _reorder(value: Any) -> Any:
    return dict(reversed(value.items()))


def _prefix(value: Any) -> None:
    value["pre_tokenizer"]["add_prefix_space"] = True


def _lose_the_pair(value: Any) -> None:
    value["post_processor"]["pair"] = value["post_processor"]["pair"][:2]


def _one_segment(value: Any) -> None:
    for part in value["post_processor"]["pair"]:
        for one in part.values():
            one["type_id"] = 0


NORMALIZER = {"type": "Lowercase"}
AROUND = {
    "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [1], "tokens": ["<|end|>"]}},
}  # fmt: skip
_TOKENS, _GENERATION, _RUNTIME = "its tokenizer ", "its generation_config.json is not the checkpoint's: ", "its runtime's settings .*"
_CONFIG = "its config.json is not that of the model"
_SCHEME = "its config.json says otherwise than its weights are stored \\(quantization_config\\): "
_STRAY, _UNDECLARED, _FOREIGN = "it holds ", ", which its format does not declare", ", which neither the checkpoint nor its base has"
_UNNAMED = ", which no index and no graph of the folder names"
GRAPHS, GENAI_NAMES = ("onnx", "onnx-int8"), tuple(GENAI)
CASES = (
    Case("two ids swapped", CAUSAL, edit(TOKENIZER, _swap_ids), f"{_TOKENS}gives '.*' the id 319 instead of 318, and 1 more"),
    Case("the last merge lost", CAUSAL, edit(TOKENIZER, _lose_merges(1)), f"{_TOKENS}has 61 merges instead of 62"),
    Case("40 merges lost", CAUSAL, edit(TOKENIZER, _lose_merges(40)), f"{_TOKENS}has 22 merges instead of 62"),
    Case("merges in another order", CAUSAL, edit(TOKENIZER, _swap_merges), f"{_TOKENS}merges .* where the checkpoint's merges"),
    Case("<|end|> dropped", CAUSAL, edit(TOKENIZER, _drop_added),
         f"{_TOKENS}.*(does not keep '<\\|end\\|>' together|reads)|special tokens"),
    Case("<|end|> shifted", CAUSAL, edit(TOKENIZER, _shift_added),
         f"{_TOKENS}gives '<\\|end\\|>' the id 2 instead of 1|could not be run"),
    Case("<|end|> not special", ("onnx", "onnx-int8", *GENAI), edit(TOKENIZER, _plain_added),
         "added token '<\\|end\\|>' with special = False"),
    Case("<|end|> takes the space after it", CAUSAL, edit(TOKENIZER, _strip_added), "added token '<\\|end\\|>' with rstrip = True"),
    Case("a token more", CAUSAL, edit(TOKENIZER, _more_added), "has the token '<\\|more\\|>' \\(id 320\\), which the checkpoint's has not"),
    Case("decoder removed", CAUSAL, keys(TOKENIZER, decoder=None), "decodes .* as '.*Ġ|another decoder"),
    Case("decoder of another kind", CAUSAL, keys(TOKENIZER, decoder={"type": "Fuse"}), "decodes .* as |another decoder"),
    Case("a normalizer", CAUSAL, keys(TOKENIZER, normalizer=NORMALIZER), "reads .* as .* instead of|another normalizer"),
    Case("NFC", CAUSAL, keys(TOKENIZER, normalizer={"type": "NFC"}), "reads .* as .* instead of|another normalizer"),
    Case("a space before each text", CAUSAL, edit(TOKENIZER, _prefix), "reads .* as .* instead of|another pre_tokenizer"),
    Case("pre-tokenizer removed", CAUSAL, keys(TOKENIZER, pre_tokenizer=None), "reads .* as .* instead of|another pre_tokenizer"),
    Case("a token before each text", CAUSAL, keys(TOKENIZER, post_processor=AROUND), "reads .* as .* instead of|another post_processor"),
    Case("texts cut", GRAPHS, keys(TOKENIZER, truncation={"direction": "Right", "max_length": 8, "strategy": "LongestFirst",
         "stride": 0}),
         "cuts texts in a way"),
    Case("keys in another order", CAUSAL, edit(TOKENIZER, _reorder), None),
    Case("a decoder's unused key", GRAPHS, edit(TOKENIZER, lambda value: value["decoder"].update(trim_offsets=False)), None),
    Case("texts begin with a token", CAUSAL, keys(TOKENIZER_CONFIG, add_bos_token=True), "add_bos_token is True instead of not set"),
    Case("texts are tidied", CAUSAL, keys(TOKENIZER_CONFIG, clean_up_tokenization_spaces=True),
         "clean_up_tokenization_spaces is True|decodes"),
    Case("texts of 8 tokens", CAUSAL, keys(TOKENIZER_CONFIG, model_max_length=8), "model_max_length is 8 instead of"),
    Case("another class of tokenizer", GRAPHS, keys(TOKENIZER_CONFIG, tokenizer_class="BertTokenizer"),
         "tokenizer_class is 'BertTokenizer'"),
    Case("padding on the other side", CAUSAL, keys(TOKENIZER_CONFIG, padding_side="left"), "padding_side is 'left' instead of not set"),
    Case("cut on the other side", CAUSAL, keys(TOKENIZER_CONFIG, truncation_side="left"), "truncation_side is 'left' instead of not set"),
    Case("other inputs of the model", CAUSAL, keys(TOKENIZER_CONFIG, model_input_names=["input_ids"]),
         "model_input_names is \\['input_ids'\\] instead of not set"),
    Case("added tokens of an older release", GRAPHS, keys(TOKENIZER_CONFIG, added_tokens_decoder={"1": {"content": "<|no|>"}}),
         "added_tokens_decoder is .* instead of not set"),
    Case("the model's own tokenizer", GRAPHS, keys(TOKENIZER_CONFIG, auto_map={"AutoTokenizer": ["other.Tokenizer", None]}),
         "auto_map is .* instead of not set"),
    Case("special tokens kept as text", GRAPHS, keys(TOKENIZER_CONFIG, split_special_tokens=True), "split_special_tokens is True|reads"),
    Case("more special tokens", ("onnx", "pytorch"), keys(TOKENIZER_CONFIG, extra_special_tokens=["<|more|>"]),
         "extra_special_tokens is|added token|has the token"),
    Case("the usual side, in words", CAUSAL, keys(TOKENIZER_CONFIG, padding_side="right"), None),
    Case("settings of the tokenizer lost", GRAPHS, lose(TOKENIZER_CONFIG), "it lacks tokenizer_config.json"),
    Case("another name of the class", GRAPHS, keys(TOKENIZER_CONFIG, tokenizer_class="PreTrainedTokenizerFast"), None),
    Case("template lost", CAUSAL, lose(TEMPLATE), "it has no chat template, and the checkpoint has one"),
    Case("a token of the template", CAUSAL, text(TEMPLATE, "<|end|>", "<|end|>\n"), "its chat_template.jinja writes .* instead of"),
    Case("no beginning of an answer", CAUSAL, text(TEMPLATE, "add_generation_prompt", "false"), "with the beginning of an answer"),
    Case("tools ignored", CAUSAL, text(TEMPLATE, "{% if tools %}", "{% if false %}"), "its chat_template.jinja writes .* instead of"),
    Case("what is written without thinking", CAUSAL, text(TEMPLATE, "<|none|>", ""), "its chat_template.jinja writes .* instead of"),
    Case("tools in another order", CAUSAL, text(TEMPLATE, "tools | tojson", "tools | reverse | list | tojson"),
         "its chat_template.jinja writes .* instead of"),
    Case("control characters lost", CAUSAL,
         keys(TOKENIZER, normalizer={"type": "Replace", "pattern": {"Regex": "[\\x00-\\x08]"}, "content": ""}),
         "reads .* as .* instead of|another normalizer"),
    Case("new emoji lost", CAUSAL,
         keys(TOKENIZER, normalizer={"type": "Replace", "pattern": {"Regex": "[\\x{1FA70}-\\x{1FAFF}]"}, "content": "?"}),
         "reads .* as other ids|another normalizer"),
    Case("characters of private use lost", CAUSAL,
         keys(TOKENIZER, normalizer={"type": "Replace", "pattern": {"Regex": "[\\x{E000}-\\x{F8FF}]"}, "content": ""}),
         "reads .* as other ids|another normalizer"),
    Case("letters beyond the basic plane lost", CAUSAL,
         keys(TOKENIZER, normalizer={"type": "Replace", "pattern": {"Regex": "[\\x{12000}-\\x{12FFF}]"}, "content": "?"}),
         "reads .* as other ids|another normalizer"),
    Case("a template that refuses", CAUSAL, text(TEMPLATE, "{% for", "{{ raise_exception('no') }}{% for"),
         "writes nothing, since it refuses"),
    Case("another template inside", CAUSAL, keys(TOKENIZER_CONFIG, chat_template="{{ messages[0]['content'] }}"),
         "its tokenizer_config.json writes .* instead of"),
    Case("the same template inside", CAUSAL, keys(TOKENIZER_CONFIG, chat_template=TEMPLATE_TEXT), None),
    Case("a comment in the template", CAUSAL, text(TEMPLATE, "{% for", "{# turns #}{% for"), None),
    Case("generation_config.json lost", CAUSAL, lose("generation_config.json"),
         "lacks generation_config.json|its generation_config.json is not"),
    Case("another end", CAUSAL, keys("generation_config.json", eos_token_id=5), f"{_GENERATION}eos_token_id is 5 instead of 1"),
    Case("another end more", CAUSAL, keys("generation_config.json", eos_token_id=[1, 5]), f"{_GENERATION}eos_token_id is \\[1, 5\\]"),
    Case("no penalty", CAUSAL, keys("generation_config.json", repetition_penalty=None), f"{_GENERATION}repetition_penalty is not set"),
    Case("another length", CAUSAL, keys("generation_config.json", max_new_tokens=8), f"{_GENERATION}max_new_tokens is 8 instead of 16"),
    Case("another suppressed token", CAUSAL, keys("generation_config.json", suppress_tokens=[8]),
         f"{_GENERATION}suppress_tokens is \\[8\\]"),
    Case("no bad words", CAUSAL, keys("generation_config.json", bad_words_ids=None), f"{_GENERATION}bad_words_ids is not set"),
    Case("sampling", CAUSAL, keys("generation_config.json", do_sample=True, temperature=0.3), f"{_GENERATION}do_sample is True"),
    Case("beams", CAUSAL, keys("generation_config.json", num_beams=4), f"{_GENERATION}num_beams is 4"),
    Case("a forced token", CAUSAL, keys("generation_config.json", forced_eos_token_id=3), f"{_GENERATION}forced_eos_token_id is 3"),
    Case("what is usual, in words", CAUSAL, keys("generation_config.json", do_sample=False, num_beams=1, eos_token_id=[1]), None),
    Case("another release", CAUSAL, keys("generation_config.json", transformers_version="4.0.0"), None),
    Case("another theta", ("onnx", *GENAI), within("config.json", "rope_parameters", rope_theta=5e5),
         f"{_CONFIG}.* rope_theta is 500000.0|rope_parameters"),
    Case("a foreign setting", ("onnx", *GENAI), keys("config.json", attn_scale=3), f"{_CONFIG}.* attn_scale is 3 instead of not set"),
    Case("another vocabulary", ("onnx", *GENAI), keys("config.json", vocab_size=300), f"{_CONFIG}.* vocab_size is 300 instead of 320"),
    Case("another type of the weights", ("pytorch",), lambda folder: zoo.edit_json(folder / "config.json", dtype="float16"),
         "says dtype float16, and its weights are stored in bfloat16"),
    Case("weights quantized that are not", ("onnx", *GENAI),
         lambda folder: zoo.edit_json(folder / "config.json", quantization_config={"quant_method": "fp8"}),
         "says that its weights are quantized"),
    Case("fewer positions", ("onnx", *GENAI), keys("config.json", max_position_embeddings=64),
         f"{_CONFIG}.* max_position_embeddings is 64"),
    Case("the runtime's end", GENAI_NAMES, within("genai_config.json", "model", eos_token_id=5),
         f"{_RUNTIME}eos_token_id is \\[5\\] instead of 1"),
    Case("the runtime's padding", GENAI_NAMES, within("genai_config.json", "model", pad_token_id=4),
         f"{_RUNTIME}pad_token_id is 4 instead of 0"),
    Case("the runtime's context", GENAI_NAMES, within("genai_config.json", "model", context_length=64),
         "context_length is 64 instead of 256|exceeds max length"),
    Case("the runtime's length", GENAI_NAMES, within("genai_config.json", "search", max_length=20),
         f"{_RUNTIME}max_length is 20.0 instead of 256"),
    Case("the runtime's penalty", GENAI_NAMES, within("genai_config.json", "search", repetition_penalty=2.0),
         "repetition_penalty is 2.0 instead"),
    Case("the runtime's shortest text", GENAI_NAMES, within("genai_config.json", "search", min_length=9),
         f"{_RUNTIME}min_length is 9.0 instead of 1"),
    Case("the runtime samples", GENAI_NAMES, within("genai_config.json", "search", do_sample=True),
         f"{_RUNTIME}do_sample is True instead of False"),
    Case("the runtime's choice", GENAI_NAMES, within("genai_config.json", "search", top_k=1), f"{_RUNTIME}top_k is 1.0 instead of 20"),
    Case("the runtime's temperature", GENAI_NAMES, within("genai_config.json", "search", temperature=0.5),
         "temperature is 0.5 instead of 1.0"),
    Case("the runtime's beams", GENAI_NAMES, within("genai_config.json", "search", num_beams=2),
         f"{_RUNTIME}num_beams is 2.0 instead of 1"),
    Case("outputs rounded too", COMPRESSED, scheme(*GROUP, output_activations=ACTIVATIONS), f"{_SCHEME}group_0.output_activations"),
    Case("a sparse form", COMPRESSED, scheme(sparsity_config={"format": "sparse-24-bitmask", "sparsity_structure": "2:4"}),
         f"{_SCHEME}sparsity_config|could not be run"),
    Case("a rounded cache", COMPRESSED, scheme(kv_cache_scheme=ACTIVATIONS), f"{_SCHEME}kv_cache_scheme|could not be run"),
    Case("turned weights", COMPRESSED, scheme(transform_config={"config_groups": {"R1": {"type": "hadamard", "apply": []}}}),
         f"{_SCHEME}transform_config|could not be run"),
    Case("another format", COMPRESSED, scheme(format="float-quantized"), f"{_SCHEME}format is 'float-quantized'|could not be run"),
    Case("another state", COMPRESSED, scheme(quantization_status="frozen"), f"{_SCHEME}quantization_status|could not be run"),
    Case("a key of nobody", COMPRESSED, scheme(smoothing=0.5), f"{_SCHEME}smoothing is 0.5, which is not known|could not be run"),
    Case("a quantized layer ignored", COMPRESSED, scheme(ignore=["lm_head", "model.layers.0.mlp.up_proj"]),
         f"{_SCHEME}ignore names model.layers.0.mlp.up_proj|weights|could not be run"),
    Case("quantized layers ignored by a pattern", COMPRESSED, scheme(ignore=["lm_head", "re:.*up_proj"]),
         f"{_SCHEME}ignore names model.layers.0.mlp.up_proj|weights|could not be run"),
    Case("other bits", COMPRESSED, scheme(*GROUP, "weights", num_bits=6), f"{_SCHEME}group_0.weights.num_bits is 6|could not be run"),
    Case("other groups", ("pytorch-w4a16",), scheme(*GROUP, "weights", group_size=16),
         f"{_SCHEME}group_0.weights.group_size is 16|could not be run|not those of the merge"),
    Case("numbers with a middle", COMPRESSED, scheme(*GROUP, "weights", symmetric=False), f"{_SCHEME}group_0.weights.symmetric|could not"),
    Case("inputs in another order", ("pytorch-w4a16",), scheme(*GROUP, "weights", actorder="group"),
         f"{_SCHEME}group_0.weights.actorder is 'group'|could not be run"),
    Case("activations with a fixed scale", ("pytorch-w8a8",), scheme(*GROUP, "input_activations", dynamic=False),
         f"{_SCHEME}group_0.input_activations.dynamic is False|could not be run"),
    Case("activations in one scale", ("pytorch-w8a8",), scheme(*GROUP, "input_activations", strategy="tensor"),
         f"{_SCHEME}group_0.input_activations.strategy is 'tensor'|could not be run"),
    Case("activations in 8 bits", ("pytorch-w4a16",), scheme(*GROUP, input_activations=ACTIVATIONS),
         f"{_SCHEME}group_0.input_activations|could not be run"),
    Case("activations in 16 bits", ("pytorch-w8a8",), scheme(*GROUP, input_activations=None),
         f"{_SCHEME}group_0.input_activations is not set|could not be run"),
    Case("what is not set", COMPRESSED, scheme(sparsity_config=None, transform_config={}), None),
    Case("a release of the library", COMPRESSED, scheme(version="0.15.0"), None),
    Case("weights that are said to be packed", ("pytorch",), said_to_be_packed, "says that its weights are quantized, and it has no such"),
    Case("weights for another loader", ("pytorch", "pytorch-w8a8"), _copied("model.safetensors", "consolidated.safetensors"),
         f"{_STRAY}consolidated.safetensors{_UNDECLARED}"),
    Case("a shard without an index", ("pytorch", "pytorch-w8a8"), _copied("model.safetensors", "model-00002-of-00003.safetensors"),
         f"{_STRAY}model-00002-of-00003.safetensors{_UNNAMED}"),
    Case("an index of another file", ("pytorch",), _other_index, f"{_STRAY}model.safetensors{_UNNAMED}|other bytes|its weights lie in"),
    Case("pickled weights", ("pytorch",), plant("pytorch_model.bin"), f"{_STRAY}pytorch_model.bin{_UNDECLARED}"),
    Case("an adapter in a merged folder", CAUSAL, plant("adapter_config.json", {"peft_type": "LORA"}),
         f"{_STRAY}adapter_config.json{_UNDECLARED}|could not be run: .*adapter_model.safetensors"),
    Case("code that generates", CAUSAL, plant("custom_generate/generate.py"), f"{_STRAY}custom_generate/generate.py{_UNDECLARED}"),
    Case("code of a model", ("pytorch",), plant("modeling_other.py"), f"{_STRAY}modeling_other.py, code that neither"),
    Case("code beside the example", GRAPHS, plant("numpy.py"), f"{_STRAY}numpy.py{_UNDECLARED}"),
    Case("modules of sentences", CAUSAL, plant("modules.json", []), f"{_STRAY}modules.json{_FOREIGN}"),
    Case("a folder of a module", CAUSAL, plant("1_Pooling/config.json", {}), f"{_STRAY}1_Pooling/config.json{_FOREIGN}"),
    Case("another graph", ("onnx",), listed(_copied("model.onnx", "decoder_model_merged.onnx")),
         f"{_STRAY}decoder_model_merged.onnx{_UNNAMED}"),
    Case("other data of a graph", GRAPHS, listed(plant("model.onnx_data")), f"{_STRAY}model.onnx_data{_UNNAMED}"),
    Case("another file of SentencePiece", CAUSAL, plant("tokenizer.model"), f"{_STRAY}tokenizer.model{_FOREIGN}"),
    Case("another list of tokens", CAUSAL, plant("vocab.json", {"a": 0}), f"{_STRAY}vocab.json{_FOREIGN}"),
    Case("other merges", CAUSAL, plant("merges.txt"), f"{_STRAY}merges.txt{_FOREIGN}"),
    Case("special tokens of a map", ("pytorch",), plant("special_tokens_map.json", {}), f"{_STRAY}special_tokens_map.json{_FOREIGN}"),
    Case("tokens that were added", CAUSAL, plant("added_tokens.json", {"a": 1}), f"{_STRAY}added_tokens.json{_FOREIGN}"),
    Case("a processor", CAUSAL, plant("preprocessor_config.json", {}), f"{_STRAY}preprocessor_config.json{_FOREIGN}"),
    Case("an older template", CAUSAL, plant("chat_template.json", {"chat_template": TEMPLATE_TEXT}),
         f"{_STRAY}chat_template.json{_FOREIGN}"),
    Case("graphs that are listed", (*GRAPHS, "translator"), listed(lambda folder: None), None),
    Case("a license", ("pytorch", "onnx"), plant("LICENSE"), f"{_STRAY}LICENSE{_UNDECLARED}"),
    Case("settings of what generates nothing", ("classifier",), plant("generation_config.json", {"num_beams": 4}),
         f"{_STRAY}generation_config.json{_FOREIGN}"),
    Case("a vector of a classifier", ("classifier",), plant("modules.json", []), f"{_STRAY}modules.json{_FOREIGN}"),
    Case("another decoder", ("translator",), listed(_copied("decoder_model.onnx", "model.onnx")), f"{_STRAY}model.onnx{_UNNAMED}"),
    Case("one module more", ("sentences",), plant("3_Dense/config.json", {}), f"{_STRAY}3_Dense/config.json{_FOREIGN}"),
    Case("many rows", ("classifier",), sabotage.crowd, r"in a batch of \d+ rows its outputs differ"),
    Case("many rows of targets", ("translator",), lambda folder: sabotage.crowd(folder, "decoder_with_past_model.onnx"),
         r"in a batch of \d+ rows its outputs differ"),
    Case("many rows of sources", ("translator",), lambda folder: sabotage.crowd(folder, "encoder_model.onnx", "last_hidden_state"),
         r"in a batch of \d+ rows its outputs differ"),
    Case("labels permuted", ("classifier",), keys("config.json", id2label={"0": "LABEL_1", "1": "LABEL_0", "2": "LABEL_2"}),
         "its labels have other"),
    Case("a label's number", ("classifier",), keys("config.json", label2id={"LABEL_0": 2, "LABEL_1": 1, "LABEL_2": 0}), _CONFIG),
    Case("another problem", ("classifier",), keys("config.json", problem_type="multi_label_classification"), f"{_CONFIG}|thresholds"),
    Case("texts in lower case", ("classifier",), keys(TOKENIZER, normalizer=NORMALIZER), "reads .* instead of"),
    Case("[CLS] lost", ("classifier",), keys(TOKENIZER, post_processor=None), "reads .* instead of"),
    Case("a pair's second text", ("classifier",), edit(TOKENIZER, _lose_the_pair),
         "reads .* instead of"),
    Case("a pair in one segment", ("classifier",), edit(TOKENIZER, _one_segment), "gives the pair .* the segments .* instead of"),
    Case("[MASK] is another", ("classifier",), keys(TOKENIZER_CONFIG, mask_token="[UNK]"), "special tokens"),
    Case("a translator's first token", ("translator",), keys("generation_config.json", decoder_start_token_id=1),
         "special tokens|its generation_config"),
    Case("a translator's forbidden words", ("translator",), keys("generation_config.json", bad_words_ids=[[3]]),
         f"{_GENERATION}bad_words_ids"),
    Case("a translator's texts without end", ("translator",), keys(TOKENIZER, post_processor=None), "reads .* instead of"),
    Case("a translator's ids swapped", ("translator",), edit(TOKENIZER, _swap_ids), f"{_TOKENS}gives"),
    Case("a translator's decoder", ("translator",), keys(TOKENIZER, decoder=None), "decodes .* as"),
    Case("prompts of sentences", ("sentences",), keys("config_sentence_transformers.json", prompts={}),
         "its config_sentence_transformers.json is not"),
    Case("lengths of sentences", ("sentences",), keys("sentence_bert_config.json", max_seq_length=8),
         "its sentence_bert_config.json is not"),
    Case("case of sentences", ("sentences",), keys("sentence_bert_config.json", do_lower_case=True),
         "its sentence_bert_config.json is not"),
    Case("pooling", ("sentences",), keys("1_Pooling/config.json", pooling_mode_cls_token=False, pooling_mode_mean_tokens=True),
         "its 1_Pooling/config.json is not"),
    Case("a module's keys in another order", ("sentences",), edit("1_Pooling/config.json", _reorder), None),
    Case("settings of sentences lost", ("sentences",), lose("sentence_bert_config.json"), "it lacks sentence_bert_config.json"),
)  # fmt: skip
ALL = [(case, kind) for case in CASES for kind in case.on]


@dataclass(frozen=True)
class Bank:
    """Models and their sound artifacts in a folder, each made when it is first asked for. Read only."""

    folder: Path

    def sound(self, kind: str) -> tuple[str, Path]:
        """A kind's variant and folder."""
        if kind in (*CAUSAL, *COMPRESSED):
            return kind, self._causal(kind)
        variant = {"classifier": "onnx", "translator": "onnx", "sentences": "pytorch"}[kind]
        return variant, self._other(kind) / "artifact"

    def bench(self, kind: str, scratch: Path, *, merging: bool = False) -> Bench:
        """The live model of a kind, measured; `merging` as for `measured`."""
        if kind in (*CAUSAL, *COMPRESSED):
            lab = self.lab()
            return measured(lab.checkpoint(), lab.base, lab.made("sound", "pytorch"), scratch, sabotage.PROMPTS, merging=merging)
        root = self._other(kind)
        return measured(root / "adapter", root / "base", root / "merged", scratch)

    def check(self, kind: str, bench: Bench, folder: Path) -> ArtifactCheck:
        """The check of a folder of a kind."""
        variant, _ = self.sound(kind)
        source = self.lab().source(variant) if kind in (*CAUSAL, *COMPRESSED) and variant not in GENAI else None
        return bench.checked(variant, folder, source)

    def lab(self) -> sabotage.Lab:
        """The language model with a chat template and settings of generation."""
        place = self.folder / "causal"
        if not place.is_dir():
            place.mkdir()
            lab = sabotage.make(place)
            for root in (lab.base, lab.checkpoint()):  # as a chat model's, with settings of generation
                (root / TEMPLATE).write_text(TEMPLATE_TEXT)
            zoo.edit_json(lab.base / "generation_config.json", **GENERATION)
        return sabotage.Lab(place)

    def _causal(self, variant: str) -> Path:
        lab = self.lab()
        if variant not in GENAI:
            return lab.made("sound", variant)
        target = self.folder / "genai" / variant
        if not target.is_dir():
            context = make_context(self.folder / "scratch" / variant, variant, {"merge": lab.made("sound", "pytorch")}, lab.base, opset=18)
            GENAI[variant](context, silent())
            shutil.copytree(context.staging, target)
        return target

    def _other(self, kind: str) -> Path:
        root = self.folder / kind
        if (root / "artifact").is_dir():
            return root
        root.mkdir()
        if kind == "classifier":
            base = zoo.make_encoder_base(root / "base", SEQUENCE, num_labels=3)
            lora: dict[str, Any] = {"target_modules": ["query", "value", "output.dense"], "task_type": "SEQ_CLS"}
            adapter = zoo.train_adapter(base, root / "adapter", SEQUENCE, classify, load={"num_labels": 3}, **lora)
            zoo.export_encoder(zoo.merge(base, adapter, root / "merged"), root / "artifact", SEQUENCE, ("logits",))
        elif kind == "translator":
            base = zoo.make_seq2seq_base(root / "base", "t5")
            auto, lora = "AutoModelForSeq2SeqLM", {"target_modules": ["q", "v", "o"], "task_type": "SEQ_2_SEQ_LM"}
            adapter = zoo.train_adapter(base, root / "adapter", auto, lambda model, batch: zoo.copying(model, batch, 1), steps=8, **lora)
            zoo.export_seq2seq(zoo.merge(base, adapter, root / "merged"), root / "artifact", both=False)
        else:
            base = zoo.make_encoder_base(root / "base", "AutoModel")
            lora = {"target_modules": ["query", "value"], "task_type": "FEATURE_EXTRACTION"}
            adapter = zoo.train_adapter(base, root / "adapter", "AutoModel", test_sentence_transformers.spread, **lora)
            modules = test_sentence_transformers.add_modules(adapter, test_sentence_transformers.CLS, test_sentence_transformers.NORMAL)
            merged = zoo.merge(base, adapter, root / "merged")
            for path in (*modules.glob("*sentence*.json"), modules / "modules.json"):
                shutil.copyfile(path, merged / path.name)
            for path in modules.glob("[0-9]_*"):
                shutil.copytree(path, merged / path.name)
            shutil.copytree(merged, root / "artifact")
        return root


def checked(bank: Bank, bench: Bench, case: Case, kind: str, scratch: Path) -> ArtifactCheck:
    """The check of a copy that was damaged so; it is made in `scratch`."""
    target = artifacts.copy(bank.sound(kind)[1], scratch / "artifact")
    case.damage(target)
    return bank.check(kind, bench, target)


def main() -> None:
    """All of them, as a table."""
    import re
    import sys

    with tempfile.TemporaryDirectory() as name:
        root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(name, "bank")
        root.mkdir(exist_ok=True)
        bank, benches = Bank(root), dict[str, Bench]()
        for kind in dict.fromkeys(kind for _, kind in ALL):
            place = "causal" if kind in (*CAUSAL, *COMPRESSED) else kind
            benches[kind] = benches.get(place) or bank.bench(kind, Path(name, f"bench-{place}"))
            benches[place] = benches[kind]
            sound = bank.check(kind, benches[kind], bank.sound(kind)[1])
            print(f"{'sound':40} {kind:18} {sound.verdict.value:9} {' | '.join(sound.reasons)}", flush=True)
        for number, (case, kind) in enumerate(ALL):
            check = checked(bank, benches[kind], case, kind, Path(name, f"case-{number}"))
            said = " | ".join(check.reasons)
            right = check.verdict is Verdict.PASSED if case.words is None else bool(re.search(case.words, said))
            print(f"{case.name:40} {kind:18} {check.verdict.value:9} {'right' if right else 'WRONG'} {said[:300]}", flush=True)


if __name__ == "__main__":
    main()
