"""Translators without a tokenizer.json: their ONNX folders read texts as transformers does, with sentencepiece in its place."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daemon.contract.faults.errors import Permanent
from handlers.folder import playback, tokenizer_files, tokenizers
from handlers.onnx.export import stage
from handlers.onnx.tracing.strategies import STRATEGIES
from handlers.validate.outside import example
from tests import marian
from tests.marian import Marian, Translated
from tests.onnx import seq2seq
from tests.onnx.conftest import make_context, silent
from tests.validate import zoo

PLACED = ["example.py", "marian_tokenizer.py"]
TOKENS = 16
ADDED = {
    "190": {"content": "<left>", "lstrip": True, "rstrip": False, "single_word": False, "normalized": False, "special": False},
    "191": {"content": "<right>", "lstrip": False, "rstrip": True, "single_word": False, "normalized": False, "special": True},
    "192": {"content": "word", "lstrip": False, "rstrip": False, "single_word": True, "normalized": True, "special": False},
    "193": {"content": "words", "lstrip": False, "rstrip": False, "single_word": False, "normalized": True, "special": False},
}
Write = Callable[[Path], None]


def older(folder: Path) -> None:
    """Files as releases before `added_tokens_decoder` wrote them."""
    named = {"unk_token": {"content": "<unk>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}}
    (folder / "special_tokens_map.json").write_text(json.dumps(named | {"bos_token": "<s>", "pad_token": "<pad>"}))
    (folder / "added_tokens.json").write_text(json.dumps({"<mark>": 200}))


def gaps(folder: Path) -> None:
    """Numbers that vocab.json gives to nothing, which are then the source model's own."""
    vocabulary = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps({token: number for token, number in vocabulary.items() if not 10 < number < 30}))


KINDS: dict[str, tuple[dict[str, Any], Write | None]] = {
    "plain": ({}, None),
    "apart": ({"apart": True}, None),
    "older": ({}, older),
    "gaps": ({}, gaps),
    "added": ({"spaces": True, "added_tokens_decoder": ADDED, "clean_up_tokenization_spaces": True}, None),
    "more": ({"additional_special_tokens": ["<one>", "<two>"], "tag_token": "<tag>", "sep_token": "▁the"}, None),
    "list and table": ({"additional_special_tokens": ["<one>", "<two>"], "extra_special_tokens": {"tag_token": "<tag>"}}, None),
    "whole": ({"split_special_tokens": True}, None),
}
TEXTS = [
    "", " ", "The old keeper sees the boat.", ">>deu<< The boat", ">>gsw<<The boat", ">>nld<< The boat", ">>deu The boat", "a >>deu<< b",
    ">>deu<<", "The</s> boat <pad><unk> x</s>>>deu<< y", "two  spaces\tand\nlines ", "½ ﬁ ① Å é é", "東京 «проверка» 😀",
    "a <left> b <right> c", "word words wordy sword a word", "<mark>x<mark> <s> <one><two> <tag>", "it 's n't , so . ' ! 've",
    "▁the the▁ ▁",
]  # fmt: skip


def random_texts() -> list[str]:
    """Texts of anything that has a meaning to a tokenizer, in any order."""
    draw = random.Random(7)
    words = [*marian.WORDS, *marian.WORDS.values(), *marian.CODES]
    parts = [*words, *words, " ", " ", " ", "  ", ".", "</s>", "<unk>", "<left>", "<right>", "word", "é"]
    return ["".join(draw.choice(parts) for _ in range(draw.randint(1, 9))) for _ in range(200)]


@pytest.fixture(scope="module")
def tokenizer_files_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plain tokenizer's files. Read only."""
    return marian.write_model_type(marian.write_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def loaded(folder: Path) -> Any:
    """transformers' own tokenizer of a folder."""
    from transformers import AutoTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    options, write = KINDS[kind]
    marian.write_model_type(marian.write_tokenizer(tmp_path, **options))
    if write is not None:
        write(tmp_path)
    theirs, mine = loaded(tmp_path), tokenizers.load(tmp_path)
    assert type(theirs).__name__ == "MarianTokenizer" and mine.size == len(theirs)
    known = set(mine.encode(" ".join(TEXTS)))
    assert len(known) > 30
    for text in [*TEXTS, *random_texts()]:
        assert mine.encode(text) == list(theirs(text)["input_ids"]), text
        made = list(theirs(text_target=text)["input_ids"])
        assert mine.decode(made) == theirs.decode(made, skip_special_tokens=True), text
    draw = random.Random(1)
    numbers = sorted({*theirs.decoder, *theirs.added_tokens_decoder, *range(30)})
    for _ in range(200):
        ids = [draw.choice(numbers) for _ in range(8)]
        assert mine.decode(ids) == theirs.decode(ids, skip_special_tokens=True), ids


def test_a_language_code_in_front_is_one_token(tokenizer_files_of: Path) -> None:
    vocabulary = json.loads((tokenizer_files_of / "vocab.json").read_text())
    mine = tokenizers.load(tokenizer_files_of)
    plain = mine.encode("The boat.")
    assert mine.encode(">>gsw<< The boat.") == [vocabulary[">>gsw<<"], *plain]
    assert mine.encode(">>nld<< The boat.") == [vocabulary["<unk>"], *plain]


def test_texts_for_calibration_are_read_too(tokenizer_files_of: Path) -> None:
    texts = ["The old keeper sees the boat.", "The bridge and the river."]
    found = playback.tokenize(tokenizer_files_of, texts)
    assert found.rows == loaded(tokenizer_files_of)(texts)["input_ids"] and len(found.rows[0]) > 5
    assert found.vocabulary == len(json.loads((tokenizer_files_of / "vocab.json").read_text()))


def test_damaged_files_are_told_in_one_sentence_and_cost_no_graph(tokenizer_files_of: Path, tmp_path: Path) -> None:
    folder = marian.write_model_type(marian.copy_tokenizer(tokenizer_files_of, tmp_path / "folder"))
    (folder / "source.spm").write_bytes(b"no model")
    with pytest.raises(Permanent) as error:
        tokenizers.load(folder)
    assert error.value.fault.code == "tokenizer-unreadable" and "source.spm" in error.value.fault.cause
    completed = tokenizer_files.complete(folder)
    assert completed.form is None and completed.warning is not None
    assert completed.warning.startswith("the folder's tokenizer needs transformers, so example.py takes no text: its files can't be read (")
    assert not (folder / "marian_tokenizer.py").exists()


def test_a_reader_that_reads_otherwise_than_transformers_is_not_placed(
    tokenizer_files_of: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = marian.write_model_type(marian.copy_tokenizer(tokenizer_files_of, tmp_path / "folder"))
    other = marian.copy_tokenizer(tokenizer_files_of, tmp_path / "other")
    vocabulary = json.loads((other / "vocab.json").read_text())
    (other / "vocab.json").write_text(json.dumps({**vocabulary, ">>deu<<": vocabulary[">>gsw<<"], ">>gsw<<": vocabulary[">>deu<<"]}))
    right, wrong = tokenizers.load(folder), tokenizers.load(other)
    for reader, text in ((wrong, ">>deu<<"), (SimpleNamespace(encode=right.encode, decode=str), "How are you?")):
        monkeypatch.setattr(tokenizers, "load", lambda one, reader=reader: reader)
        completed = tokenizer_files.complete(folder)
        assert completed.form is None and f"the text {text!r} becomes other tokens" in str(completed.warning)
        assert not (folder / "marian_tokenizer.py").exists()


def test_a_tokenizer_of_one_sentencepiece_model_is_written_as_tokenizer_json(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    model = marian.write_tokenizer(tmp_path / "marian") / "source.spm"
    folder = tmp_path / "t5"
    folder.mkdir()
    (folder / "spiece.model").write_bytes(model.read_bytes())
    (folder / "config.json").write_text('{"model_type": "t5"}')
    theirs = loaded(folder)
    assert tokenizer_files.complete(folder) == tokenizer_files.Completed("written")
    mine = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert mine.encode(text).ids == ids
        assert mine.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert len({token for text in TEXTS for token in theirs(text)["input_ids"]}) > 30
    before = (folder / "tokenizer.json").read_bytes()
    assert tokenizer_files.complete(folder).form == "tokenizer.json" and (folder / "tokenizer.json").read_bytes() == before


def test_a_tokenizer_that_needs_transformers_is_told(tmp_path: Path) -> None:
    model = marian.write_tokenizer(tmp_path / "marian") / "source.spm"
    folder = tmp_path / "m2m"
    folder.mkdir()
    (folder / "sentencepiece.bpe.model").write_bytes(model.read_bytes())
    (folder / "vocab.json").write_text(
        json.dumps({token: number for number, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "▁the"])})
    )
    (folder / "config.json").write_text('{"model_type": "m2m_100"}')
    completed = tokenizer_files.complete(folder)
    assert completed.form is None and "transformers' M2M100Tokenizer can't be written as a tokenizer.json" in str(completed.warning)
    with pytest.raises(Permanent, match=r"there is no tokenizer\.json, and no source\.spm with vocab\.json"):
        tokenizers.load(folder)


@pytest.mark.slow
def test_the_example_of_a_t5_reads_the_tokenizer_json_that_was_written(tmp_path: Path) -> None:
    from transformers import T5ForConditionalGeneration

    source = seq2seq.make(tmp_path / "source", "t5", vocab_size=256)
    (source / "spiece.model").write_bytes((marian.write_tokenizer(tmp_path / "marian") / "source.spm").read_bytes())
    model = T5ForConditionalGeneration.from_pretrained(source)
    marian.teach(model, loaded(source), steps=60, skip=0)
    model.save_pretrained(source)
    zoo.edit_json(source / "generation_config.json", no_repeat_ngram_size=0, min_new_tokens=0)
    context = make_context(tmp_path, "onnx", {"merge": source}, source)
    output = stage.export(context, silent(), [row for row in STRATEGIES if row.name == "legacy-eager"])
    folder = Path(context.staging)
    assert output.figures["tokenizer"] == "written" and not [line for line in output.warnings if "tokenizer" in line]
    assert not (folder / "marian_tokenizer.py").exists()
    text = marian.sentences(1)[0][0]
    wanted = generated(source, text)
    assert len(set(wanted)) > 1
    assert example.check(folder, text, wanted, 1) is None


def ran(folder: Path, *arguments: str, without: tuple[str, ...] = ("torch", "transformers", "tokenizers")) -> Any:
    """example.py in a process that lacks packages."""
    program = f"import runpy, sys\nfor name in {without!r}:\n    sys.modules[name] = None\nsys.argv = sys.argv[1:]\n"
    program += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-I", "-c", program, str(folder / "example.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def generated(folder: Path, text: str) -> list[int]:
    """Ids that transformers generates greedily, without the start token."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = loaded(folder)(text, return_tensors="pt")
    made: list[int] = model.generate(**inputs, max_new_tokens=TOKENS, num_beams=1, do_sample=False)[0].tolist()[1:]
    return made


# R3.3
@pytest.mark.slow
def test_the_example_translates_as_transformers_does_with_sentencepiece_alone(marian_export: Translated) -> None:
    files = sorted(path.name for path in marian_export.onnx.iterdir() if ".onnx" not in path.name)
    assert files == sorted([*PLACED, *marian.FILES, "config.json", "generation_config.json", "graphs.json"])
    for name in marian.FILES:
        assert (marian_export.onnx / name).read_bytes() == (marian_export.merged / name).read_bytes()
    assert marian_export.output.figures["tokenizer"] == "marian"
    assert not [line for line in marian_export.output.warnings if "tokenizer" in line]
    texts = [source for source, _ in marian.sentences(3)]
    for text in [*texts, f">>gsw<< {texts[0]}"]:
        wanted = generated(marian_export.merged, text)
        shown = loaded(marian_export.merged).decode(wanted, skip_special_tokens=True)
        assert len(shown) > 8
        done = ran(marian_export.onnx, text, "--tokens", str(TOKENS), "--ids")
        assert done.returncode == 0 and json.loads(done.stdout) == wanted, done.stderr
        assert ran(marian_export.onnx, text, "--tokens", str(TOKENS)).stdout == f"{shown}\n"
        assert example.check(marian_export.onnx, text, wanted, 1) is None
        assert example.check(marian_export.onnx, text, [*wanted[:2], 5, 5], 1) is not None
    assert sorted(path.name for path in marian_export.onnx.iterdir() if ".onnx" not in path.name) == files, (
        "running it leaves nothing behind"
    )


@pytest.mark.slow
def test_the_example_says_which_package_is_missing(marian_export: Translated) -> None:
    done = ran(marian_export.onnx, "The boat.", without=("sentencepiece",))
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "This model's tokenizer needs the Python package sentencepiece: pip install sentencepiece\n"


@pytest.mark.slow
def test_the_adapter_changes_what_is_translated(marian_model: Marian, marian_export: Translated) -> None:
    text = marian.sentences(1)[0][0]
    assert generated(marian_model.base, text) != generated(marian_export.merged, text)
