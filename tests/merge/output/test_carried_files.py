"""What the published folder carries beside the weights: whatever a loader reads there gives the same as it did at the source."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoProcessor, AutoTokenizer, GenerationConfig

from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.pinning.pins import make_pin
from daemon.contract.jobs.options import MergeOptions
from handlers.child.progress import StageOutput
from handlers.merge import stage
from handlers.models.files import TOKENIZER
from handlers.pytorch import stage as pytorch
from tests import models
from tests.merge import helpers

HARD = (
    "", " two  spaces, a\ttab\nand a line ", "Größe 12 µm × 3 €, naïve café – «проверка» 東京", "<|mine|> and [X]",
    "ﬁ ① Å 👩‍👩‍👧", "don't, it's 1,000.5",
    "A" * 40,
)  # fmt: skip
SPECIAL = {"additional_special_tokens": ["<|mine|>"]}


def bpe(folder: Path) -> None:
    """tokenizer.json with tokens that were added later, and two chat templates."""
    tokenizer = models.make_tokenizer()
    tokenizer.add_tokens(["[X]"])
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.chat_template = {"default": "{{ messages[0]['content'] }}!", "tool_use": "{{ 'tool' }}"}
    tokenizer.save_pretrained(folder)


def word_pieces(folder: Path) -> None:
    """vocab.txt as transformers 4 left it: the tokens that were added lie in a file of their own."""
    letters = [chr(code) for code in range(33, 127)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "caf", "##e", *letters, *(f"##{one}" for one in letters)]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "added_tokens.json").write_text(json.dumps({"<|mine|>": len(words), "[X]": len(words) + 1}))
    (folder / "special_tokens_map.json").write_text(json.dumps({"unk_token": "[UNK]", "additional_special_tokens": ["<|mine|>"]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": False}))


def pieces(folder: Path) -> None:
    """A SentencePiece model."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(models.TEXTS * 20), model_prefix=str(folder / "spiece"), vocab_size=120, hard_vocab_limit=False,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, character_coverage=1.0, minloglevel=2,
    )  # fmt: skip
    (folder / "spiece.vocab").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 0}))


def pairs(folder: Path) -> None:
    """vocab.json and merges.txt."""
    table = json.loads(models.make_tokenizer().backend_tokenizer.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(table["vocab"]))
    lines = [" ".join(one) if isinstance(one, list) else one for one in table["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(lines) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", "unk_token": "!"}))


def octets(folder: Path) -> None:
    """Bytes, which need no vocabulary."""
    transformers.ByT5Tokenizer().save_pretrained(folder)


KINDS = (bpe, word_pieces, pieces, pairs, octets)


@pytest.fixture(scope="module")
def bare(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pico base without a tokenizer. Read only."""
    folder = tmp_path_factory.mktemp("bare")
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copyfile(pico_base / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def adapter(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter alone. Read only."""
    return helpers.make_adapter(pico_base, tmp_path_factory.mktemp("alone") / "adapter")


Publish = Callable[..., tuple[Path, StageOutput]]


@pytest.fixture
def publish(tmp_path: Path) -> Publish:
    """Pin a checkpoint, merge it into its base if it has one, and assemble the folder `pytorch`."""

    def one(checkpoint: Path, base: Path | None, *, trusted: bool = False) -> tuple[Path, StageOutput]:
        pin = tmp_path / "pin"
        make_pin(checkpoint, pin, fingerprint(checkpoint))
        method = "full" if base is None else "LORA"
        first = helpers.context(tmp_path / "merge", pin, base, method=method)
        stage.run(first, helpers.reporter())
        second = helpers.context(tmp_path / "pytorch", pin, base, method=method, merge=Path(first.staging))
        work = second.work.model_copy(update={"merge": MergeOptions(trust_remote_code=trusted)})
        output = pytorch.run(second.model_copy(update={"work": work}), helpers.reporter())
        return Path(second.staging), output

    return one


def same_tokenizer(source: Path, folder: Path) -> None:
    mine, theirs = AutoTokenizer.from_pretrained(folder), AutoTokenizer.from_pretrained(source)
    assert type(mine) is type(theirs)
    for text in HARD:
        ids = theirs(text)["input_ids"]
        assert mine(text)["input_ids"] == ids, text
        assert mine.decode(ids) == theirs.decode(ids)
    assert (mine.special_tokens_map, mine.all_special_ids, mine.padding_side) == (
        theirs.special_tokens_map, theirs.all_special_ids, theirs.padding_side,
    )  # fmt: skip
    assert mine.chat_template == theirs.chat_template
    for template in ("default", "tool_use") if theirs.chat_template else ():
        asked: Any = {"conversation": [{"role": "user", "content": "hello"}], "chat_template": template, "tokenize": False}
        assert mine.apply_chat_template(**asked) == theirs.apply_chat_template(**asked)


@pytest.mark.parametrize(
    ("owner", "write"), [*(("adapter", kind) for kind in KINDS), ("full fine-tune", word_pieces), ("base", pieces), ("base", octets)]
)
def test_a_tokenizer_of_any_kind_is_the_same_in_the_published_folder(
    owner: str, write: Callable[[Path], None], bare: Path, adapter: Path, tmp_path: Path, publish: Publish
) -> None:
    base = shutil.copytree(bare, tmp_path / "base")
    if owner == "full fine-tune":
        write(base)
        folder, output = publish(base, None)
        source = base
    else:
        checkpoint = shutil.copytree(adapter, tmp_path / "adapter")
        source = checkpoint if owner == "adapter" else base
        write(source)
        folder, output = publish(checkpoint, base)
    assert output.figures["tokenizer_from"] == ("base" if owner == "base" else "checkpoint") and not output.warnings
    if source != base:  # transformers asks the configuration beside a tokenizer which class it is
        shutil.copyfile(bare / "config.json", source / "config.json")
    same_tokenizer(source, folder)


def test_all_files_that_transformers_tokenizers_read_are_copied() -> None:
    """The names in VOCAB_FILES_NAMES of every tokenizer of the installed release, and its file of all that was saved."""
    root = Path(str(transformers.__file__)).parent
    named: set[str] = set()
    for path in root.glob("models/*/tokenization_*.py"):
        for block in re.findall(r"^VOCAB_FILES_NAMES *= *\{(.*?)\}", path.read_text(), re.DOTALL | re.MULTILINE):
            named.update(re.findall(r'"([\w.-]+\.[\w-]+)"', block))
    assert len(named) > 20
    assert not [name for name in named if not any(Path(name).match(pattern) for pattern in TOKENIZER)]


def test_a_processor_is_the_same_in_the_published_folder(bare: Path, adapter: Path, tmp_path: Path, publish: Publish) -> None:
    import numpy as np

    base = shutil.copytree(bare, tmp_path / "base")
    extractor = transformers.Wav2Vec2FeatureExtractor(feature_size=1, sampling_rate=8000, padding_value=0.25, do_normalize=True)
    transformers.Wav2Vec2Processor(extractor, models.make_tokenizer()).save_pretrained(base)
    folder, output = publish(adapter, base)
    mine, theirs = AutoProcessor.from_pretrained(folder), AutoProcessor.from_pretrained(base)
    sound = np.sin(np.arange(400, dtype=np.float32))
    for asked in ({"audio": sound, "sampling_rate": 8000}, {"text": HARD[2]}):
        answers = [one(**asked, return_tensors="np") for one in (mine, theirs)]
        assert answers[0].keys() == answers[1].keys()
        assert all(np.array_equal(answers[0][key], answers[1][key]) for key in answers[0])
    assert mine.feature_extractor.to_dict() == theirs.feature_extractor.to_dict()
    assert output.figures["carried"]["processor_config.json"] == "base"


def test_how_the_checkpoint_generates_wins_over_how_its_base_does(bare: Path, adapter: Path, tmp_path: Path, publish: Publish) -> None:
    checkpoint = shutil.copytree(adapter, tmp_path / "adapter")
    own = GenerationConfig(eos_token_id=[1, 7], temperature=0.3, do_sample=True, repetition_penalty=1.2)
    own.save_pretrained(checkpoint)
    folder, _ = publish(checkpoint, bare)
    assert GenerationConfig.from_pretrained(folder).to_diff_dict() == own.to_diff_dict()


def test_the_base_s_way_to_generate_is_kept_where_the_checkpoint_has_none(bare: Path, adapter: Path, publish: Publish) -> None:
    folder, _ = publish(adapter, bare)
    assert GenerationConfig.from_pretrained(folder).to_dict() == GenerationConfig.from_pretrained(bare).to_dict()


@pytest.mark.parametrize("trusted", [False, True])
def test_code_that_the_tokenizer_names_is_copied_with_its_helpers_only_when_trusted(
    trusted: bool, bare: Path, adapter: Path, tmp_path: Path, publish: Publish
) -> None:
    checkpoint = shutil.copytree(adapter, tmp_path / "adapter")
    bpe(checkpoint)
    config = json.loads((checkpoint / "tokenizer_config.json").read_text())
    config["auto_map"] = {"AutoTokenizer": [None, "tokenization_own.OwnTokenizer"]}
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(config))
    for name in ("tokenization_own.py", "letters.py"):
        (checkpoint / name).write_text("raise SystemExit('was run')\n")
    folder, output = publish(checkpoint, bare, trusted=trusted)
    assert {path.name for path in folder.glob("*.py")} == ({"tokenization_own.py", "letters.py"} if trusted else set())
    assert [warning for warning in output.warnings if "set merge.trust_remote_code" in warning] == output.warnings
    assert bool(output.warnings) is not trusted
    assert ("letters.py" in output.figures["left_out"]["checkpoint"]) is not trusted


def test_what_is_left_out_is_listed_with_the_reason(pico_base: Path, pico_checkpoint: Path, tmp_path: Path, publish: Publish) -> None:
    checkpoint = shutil.copytree(pico_checkpoint, tmp_path / "checkpoint-4")
    (checkpoint / "poem.xyz").write_text("?")
    (checkpoint / "global_step4").mkdir()
    base = shutil.copytree(pico_base, tmp_path / "base")
    (base / "added_tokens.json").write_text("{}")
    (base / "onnx").mkdir()
    folder, output = publish(checkpoint, base)
    published, left = {path.name for path in folder.iterdir()}, output.figures["left_out"]
    everything = {path.name + "/" * path.is_dir() for path in checkpoint.iterdir()}
    assert everything <= published | left["checkpoint"].keys(), "nothing is left behind silently"
    assert {path.name + "/" * path.is_dir() for path in base.iterdir()} <= published | left["base"].keys()
    assert (
        left["checkpoint"]["optimizer.pt"] == left["checkpoint"]["global_step4/"] == "training state, which is not needed to use the model"
    )
    assert left["checkpoint"]["adapter_model.safetensors"] == "its values are in the merged weights"
    assert left["checkpoint"]["poem.xyz"].startswith("as far as ckptd knows, transformers")
    assert left["base"]["added_tokens.json"].startswith("one complete tokenizer and one chat template are published")
    assert left["base"]["onnx/"].startswith("the weights in another form")
    assert output.figures["carried"]["tokenizer.json"] == "checkpoint"
    assert not published & (left["checkpoint"].keys() | left["base"].keys())
