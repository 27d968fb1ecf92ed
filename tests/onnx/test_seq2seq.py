"""Encoder-decoders become graphs that translate as transformers does, with a cross-attention cache that is whole in every step."""

from __future__ import annotations

import functools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from daemon.contract.faults.errors import Permanent
from handlers.families import choice as family_choice
from handlers.families.base import Tracing
from handlers.graphs.comparison import GraphMismatchError
from handlers.merge import merge_adapter
from handlers.onnx.export import stage
from handlers.onnx.options import OnnxOptions
from handlers.onnx.quantize import int8_static
from handlers.onnx.tracing.strategies import STRATEGIES
from handlers.texts.rows import Text
from handlers.texts.selection import Texts
from tests import marian
from tests.onnx import seq2seq
from tests.onnx.conftest import Exported, make_context, silent
from tests.sampling import some

TOKENS = 12
WAYS = {"pair": None, "merged, past of length 0": 0, "merged, past of length 1": 1}
SIZES = [(1, 1), (3, 6), (2, 17)]
"""Rows and source tokens: the exporters see 2 and 7."""
GRAPHS = ["decoder_model.onnx", "decoder_model_merged.onnx", "decoder_with_past_model.onnx", "encoder_model.onnx"]

ONE_EACH = ["marian", pytest.param("t5-gated-untied", marks=pytest.mark.slow), pytest.param("bart", marks=pytest.mark.slow)]
Export = Callable[..., Exported]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Exports a kind of models by one strategy, each once. Read only."""

    @functools.cache
    def one(kind: str, strategy: str = "legacy-eager", opset: int = 18) -> Exported:
        folder = tmp_path_factory.mktemp("seq2seq")
        return run(seq2seq.make(folder / "source", kind), folder, strategy, opset=opset)

    return one


def run(source: Path, folder: Path, strategy: str = "legacy-eager", *, opset: int = 18, cache: bool = True) -> Exported:
    context = make_context(folder, "onnx", {"merge": source}, source, opset=opset)
    context = context.model_copy(update={"work": context.work.with_options(OnnxOptions(cache=cache))})
    chosen = [row for row in STRATEGIES if row.name == strategy]
    return Exported(source, Path(context.staging), stage.export(context, silent(), chosen))


@functools.cache
def _wanted(source: Path, batch: int, length: int) -> np.ndarray:
    return seq2seq.generated(source, *seq2seq.sources(batch, length), TOKENS)


def assert_translates(one: Exported, dummy: int | None, sizes: list[tuple[int, int]] = SIZES) -> None:
    translator = seq2seq.Translator(one.folder)
    for batch, length in sizes:
        ids, mask = seq2seq.sources(batch, length)
        wanted = _wanted(one.source, batch, length)
        got = translator.translate(ids, mask, TOKENS, dummy=dummy)
        assert got.tolist() == wanted.tolist()
        shapes = set.union(*translator.cross_shapes)
        assert len(translator.cross_shapes) == wanted.shape[1] - 1 and shapes == {(batch, 4, length, 8)}
        assert len(set(got.ravel().tolist())) > 7


@pytest.mark.slow
# R11
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", some(ONE_EACH, of=3))
def test_greedy_translation_equals_generate_with_a_whole_cross_attention_cache_in_every_step(exported: Export, kind: str, way: str) -> None:
    assert_translates(exported(kind), WAYS[way])


# R11
@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_model_of_two_vocabularies_translates_as_the_first_exporter_writes_it(exported: Export, way: str) -> None:
    one = exported("marian-two-vocabularies", "dynamo-eager")
    assert one.output.strategy == "dynamo-eager" and one.output.figures["relative_error"] < 1e-5
    assert_translates(one, WAYS[way])


# R11
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "opset"), [("marian", 18), ("marian", 20), ("marian", 23), ("t5", 20), ("t5-gated-untied", 18), ("bart", 18)]
)
def test_other_models_and_opsets_translate_as_the_first_exporter_writes_them(exported: Export, kind: str, opset: int) -> None:
    one = exported(kind, "dynamo-eager", opset)
    assert_form(one, opset)
    for dummy in WAYS.values():
        assert_translates(one, dummy)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5", "mbart", "pegasus", "m2m100"])
def test_relatives_with_forced_first_tokens_or_other_layers_translate_too(exported: Export, kind: str) -> None:
    for dummy in WAYS.values():
        assert_translates(exported(kind), dummy)


def assert_form(one: Exported, opset: int) -> None:
    assert sorted(path.name for path in one.folder.glob("*.onnx")) == GRAPHS
    for name in GRAPHS:
        onnx.checker.check_model(str(one.folder / name), full_check=True)
        assert [(entry.domain, entry.version) for entry in onnx.load(one.folder / name).opset_import] == [("", opset)]


@pytest.mark.parametrize("kind", ONE_EACH)
def test_the_graphs_obey_the_standard_in_the_opset_asked_for(exported: Export, kind: str) -> None:
    assert_form(exported(kind), 18)


@pytest.mark.slow
def test_another_opset_is_written_when_asked_for(exported: Export) -> None:
    one = exported("marian", opset=20)
    assert_form(one, 20)
    assert_translates(one, 0, [(3, 6)])


def test_inputs_outputs_and_axes_have_the_names_that_runtimes_look_for(exported: Export) -> None:
    graphs = {one["role"]: one for one in json.loads((exported("marian").folder / "graphs.json").read_text())["graphs"]}
    assert {role: one["file"] for role, one in graphs.items()} == {
        "encoder": "encoder_model.onnx", "decoder": "decoder_model.onnx", "decoder_with_past": "decoder_with_past_model.onnx",
        "decoder_merged": "decoder_model_merged.onnx",
    }  # fmt: skip
    ports = {
        role: {port["name"]: (port["dtype"], *port["shape"]) for side in ("inputs", "outputs") for port in one[side]}
        for role, one in graphs.items()
    }
    assert ports["encoder"] == {
        "input_ids": ("int64", "batch", "encoder_sequence"), "attention_mask": ("int64", "batch", "encoder_sequence"),
        "last_hidden_state": ("float32", "batch", "encoder_sequence", 32),
    }  # fmt: skip

    def cache(prefix: str, decoder: str, encoder: str) -> dict[str, tuple[str | int, ...]]:
        return {
            f"{prefix}.{layer}.{side}.{kind}": ("float32", "batch", 4, length, 8)
            for layer in range(2) for side, length in (("decoder", decoder), ("encoder", encoder)) for kind in ("key", "value")
        }  # fmt: skip

    tokens = {
        "encoder_attention_mask": ("int64", "batch", "encoder_sequence"), "input_ids": ("int64", "batch", "sequence"),
        "logits": ("float32", "batch", "sequence", 96),
    }  # fmt: skip
    states = {"encoder_hidden_states": ("float32", "batch", "encoder_sequence", 32)}
    assert ports["decoder"] == tokens | states | cache("present", "sequence", "encoder_sequence")
    grown = tokens | cache("present", "total", "encoder_sequence")
    assert ports["decoder_with_past"] == grown | cache("past_key_values", "past", "encoder_sequence")
    assert ports["decoder_merged"] == {
        **grown, **states, **cache("past_key_values", "past", "past_encoder_sequence"), "use_cache_branch": ("bool", 1),
    }  # fmt: skip


def test_both_decoders_take_their_weights_from_the_same_places_of_one_file(exported: Export) -> None:
    folder = exported("marian").folder
    assert [path.name for path in folder.glob("*.data")] == ["model.onnx.data"]
    with_cache, without = (
        {
            (tuple(tensor.dims), *(entry.value for entry in tensor.external_data if entry.key in ("offset", "length")))
            for tensor in onnx.load(folder / name, load_external_data=False).graph.initializer if tensor.external_data
        }
        for name in ("decoder_with_past_model.onnx", "decoder_model.onnx")
    )  # fmt: skip
    assert with_cache and with_cache <= without, "the first also computes keys and values of the encoder's states"


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"decoder_vocab_size": 1500, "share_encoder_decoder_embeddings": False}], ids=["shared", "apart"])
def test_all_graphs_share_one_file_that_holds_each_weight_once(tmp_path: Path, options: dict[str, object]) -> None:
    wide = {"vocab_size": 1500, "d_model": 128, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512, "pad_token_id": 70}
    one = run(seq2seq.make(tmp_path / "source", "marian", **wide, **options), tmp_path)
    weights = (one.source / "model.safetensors").stat().st_size
    assert [path.name for path in one.folder.glob("*.data")] == ["model.onnx.data"]
    assert 0.95 * weights < (one.folder / "model.onnx.data").stat().st_size < 1.15 * weights
    vocabularies = {
        (entry.value, tuple(tensor.dims))
        for name in GRAPHS for tensor in onnx.load(one.folder / name, load_external_data=False).graph.initializer if 1500 in tensor.dims
        for entry in tensor.external_data if entry.key == "offset"
    }  # fmt: skip
    assert len({offset for offset, shape in vocabularies if len(shape) == 2 and 128 in shape}) == (2 if options else 1)


@pytest.mark.slow
def test_rules_of_generation_and_both_vocabularies_of_the_tokenizer_lie_beside_the_graphs(tmp_path: Path) -> None:
    source = seq2seq.make(tmp_path / "source", "marian-two-vocabularies")
    marian.write_tokenizer(source, apart=True, tokenizer_class="MarianTokenizer")
    one = run(source, tmp_path)
    for name in (*marian.FILES, "target_vocab.json", "generation_config.json"):
        assert (one.folder / name).read_bytes() == (source / name).read_bytes()
    config = json.loads((one.folder / "config.json").read_bytes())
    assert config == {**json.loads((source / "config.json").read_bytes()), "torch_dtype": "float32"}, "what older readers ask for is added"
    assert one.output.warnings == [line for line in one.output.warnings if "tokenizer" not in line]


@pytest.mark.slow
def test_without_a_cache_the_decoder_takes_all_tokens_and_gives_logits_alone(tmp_path: Path) -> None:
    one = run(seq2seq.make(tmp_path / "source", "t5"), tmp_path, cache=False)
    assert sorted(path.name for path in one.folder.glob("*.onnx")) == ["decoder_model.onnx", "encoder_model.onnx"]
    translator = seq2seq.Translator(one.folder)
    sessions = translator.sessions
    ids, mask = seq2seq.sources(2, 9)
    states = sessions["encoder_model.onnx"].run(None, {"input_ids": ids, "attention_mask": mask})[0]
    wanted = seq2seq.generated(one.source, ids, mask, 5)
    assert 1 not in wanted
    answer = wanted[:, :1]
    for _ in range(5):
        feeds = {"encoder_attention_mask": mask, "encoder_hidden_states": states, "input_ids": answer}
        (logits,) = sessions["decoder_model.onnx"].run(None, feeds)
        answer = np.concatenate([answer, translator.choose(logits[:, -1], answer, 5)[:, None]], axis=1)
    assert answer.tolist() == wanted.tolist()


def test_a_model_whose_encoder_hears_is_refused_at_once(tmp_path: Path) -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = WhisperConfig(**sizes, **tokens, vocab_size=64, encoder_ffn_dim=16, decoder_ffn_dim=16, max_source_positions=8, num_mel_bins=8)
    WhisperForConditionalGeneration(config).save_pretrained(tmp_path / "source")
    with pytest.raises(Permanent) as error:
        run(tmp_path / "source", tmp_path)
    assert error.value.fault.code == "unsupported-architecture"


def _edited(one: Exported, target: Path, name: str, edit: Callable[[onnx.ModelProto], None]) -> Path:
    shutil.copytree(one.folder, target)
    model = onnx.load(target / name, load_external_data=False)
    edit(model)
    (target / name).write_bytes(model.SerializeToString())
    return target


def _loses_its_rows_with_a_cache(model: onnx.ModelProto) -> None:
    """What the decoders of other exporters do: no rows where there is a cache."""
    name = "present.0.encoder.key"
    producer = next(node for node in model.graph.node if name in node.output)
    producer.output[list(producer.output).index(name)] = "whole"
    numbers = {"nothing": 0, "everything": 2**62, "first": 0}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.array([number]), one) for one, number in numbers.items())
    for node in model.graph.node:
        for index, one in enumerate(node.input):
            if one == name:
                node.input[index] = "whole"
    model.graph.node.append(onnx.helper.make_node("Where", ["use_cache_branch", "nothing", "everything"], ["rows"]))
    model.graph.node.append(onnx.helper.make_node("Slice", ["whole", "nothing", "rows", "first"], [name]))


def _swaps_keys_and_values(model: onnx.ModelProto) -> None:
    swapped = {"present.1.encoder.key": "present.1.encoder.value", "present.1.encoder.value": "present.1.encoder.key"}
    for node in model.graph.node:
        for index, name in enumerate(node.output):
            node.output[index] = swapped.get(name, name)


def _looks_at_a_dummy_past(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "Slice" and node.input[0].startswith("past_key_values.") and ".decoder." in node.input[0]:
            node.op_type = "Identity"
            del node.input[1:]


def _forgets_the_mask(model: onnx.ModelProto) -> None:
    """The mask is made of ones, as an exporter makes it that took it for a constant."""
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == "encoder_attention_mask":
                node.input[index] = "ones"
    ones = onnx.numpy_helper.from_array(np.array([1]), "one")
    model.graph.initializer.append(ones)
    model.graph.node.insert(0, onnx.helper.make_node("Max", ["encoder_attention_mask", "one"], ["ones"]))


# R11
@pytest.mark.parametrize(
    ("name", "edit", "complaint"),
    [
        (
            "decoder_model_merged.onnx",
            _loses_its_rows_with_a_cache,
            r"present\.0\.encoder\.key in step 2 of .*merged.* shape \(0, 4, 9, 8\)",
        ),
        ("decoder_with_past_model.onnx", _swaps_keys_and_values, r"present\.1\.encoder\.key in step 2 of .*with_past"),
        ("decoder_model_merged.onnx", _looks_at_a_dummy_past, "logits of decoder_model_merged.onnx in step 1 differ"),
        ("decoder_with_past_model.onnx", _forgets_the_mask, "logits of decoder_with_past_model.onnx in step 2 differ"),
    ],
)
def test_a_broken_decoder_is_caught_by_the_check_after_the_export(
    exported: Export, tmp_path: Path, name: str, edit: Callable[[onnx.ModelProto], None], complaint: str
) -> None:
    one = exported("marian")
    family = family_choice.choose(one.source)
    reference = family.refer(family.load(one.source, Tracing()), one.source)
    assert family.verify(one.folder, reference, threads=1) < 1e-5
    folder = _edited(one, tmp_path / "edited", name, edit)
    with pytest.raises(GraphMismatchError, match=complaint):
        family.verify(folder, reference, threads=1)


# R11
@pytest.mark.slow
def test_an_adapter_merged_into_its_base_translates_as_the_two_together(tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import MarianMTModel

    base = seq2seq.make(tmp_path / "base", "marian", init_std=0.1)
    model = seq2seq.teach(MarianMTModel.from_pretrained(base), steps=30, shift=0)
    model.save_pretrained(base)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "fc1"], task_type="SEQ_2_SEQ_LM")
    seq2seq.teach(get_peft_model(model, config), steps=20, shift=1).save_pretrained(tmp_path / "adapter")
    (tmp_path / "merged").mkdir()
    merge_adapter(tmp_path / "adapter", base, tmp_path / "merged")
    one = run(tmp_path / "merged", tmp_path)
    live = PeftModel.from_pretrained(MarianMTModel.from_pretrained(base), tmp_path / "adapter").eval()
    ids, mask = seq2seq.sources(3, 6)
    wanted = seq2seq.greedy_of(live, ids, mask, TOKENS)
    assert wanted.tolist() != seq2seq.generated(base, ids, mask, TOKENS).tolist()
    for dummy in WAYS.values():
        assert seq2seq.Translator(one.folder).translate(ids, mask, TOKENS, dummy=dummy).tolist() == wanted.tolist()


def test_with_a_cache_static_int8_says_what_it_says_without_one(exported: Export, tmp_path: Path) -> None:
    """Both graphs of the decoder round over the same ranges, though each has seen other calls."""
    one = exported("marian")
    shutil.copytree(one.folder, tmp_path / "onnx")
    words = {f"w{number}": number for number in range(60)}
    tokenizer = Tokenizer(models.WordLevel({**words, "?": 60}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "onnx/tokenizer.json"))
    context = make_context(tmp_path / "made", "onnx-int8-static", {"onnx": tmp_path / "onnx"}, one.source)
    chance = random.Random(1)
    texts = tuple(Text(" ".join(chance.choices(list(words), k=12))) for _ in range(8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(int8_static, "calibration_texts", lambda *_: Texts(texts, (("test", 8),)))
        int8_static.run(context, silent())
    session = {role: scales(Path(context.staging) / f"{role}_model.onnx") for role in ("decoder", "decoder_with_past")}
    shared = session["decoder"].keys() & session["decoder_with_past"].keys()
    assert len(shared) >= 8
    assert {key: session["decoder"][key] for key in shared} == {key: session["decoder_with_past"][key] for key in shared}


def scales(path: Path) -> dict[bytes, set[float]]:
    """A product's int8 weight → the scales of what is multiplied with it."""
    model = ir.load(path)
    found: dict[bytes, set[float]] = {}
    for node in model.graph.all_nodes():
        if node.op_type != "MatMul":
            continue
        makers = [value.producer() for value in node.inputs if value is not None]
        if len(makers) == 2 and all(maker is not None and maker.op_type == "DequantizeLinear" for maker in makers):
            factor, weight = makers
            while weight.op_type in ("DequantizeLinear", "Transpose"):  # type: ignore[union-attr]
                value = weight.inputs[0]  # type: ignore[union-attr]
                if value.const_value is not None:  # type: ignore[union-attr]
                    break
                weight = value.producer()  # type: ignore[union-attr]
            scale = factor.inputs[1].const_value.numpy().item()  # type: ignore[union-attr]
            found.setdefault(value.const_value.numpy().tobytes(), set()).add(scale)  # type: ignore[union-attr]
    return found
