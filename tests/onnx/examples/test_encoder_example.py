"""example.py of an encoder's export says what transformers says, as people run it: labels, spans, answers, masks and vectors."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handlers.validate.engines import task_profile
from handlers.validate.engines.sentence import SentencePooling
from tests.onnx.encoder_models import FAMILIES, LENGTH, TEXTS, Script, attempt, graph_of, loaded, run, sentence_graph_of, source
from tests.onnx.test_encoders import HEADS
from tests.sampling import some
from tests.validate import zoo

Folders = Callable[..., tuple[Path, Path]]
MANY = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))

words = st.sampled_from(
    ["Ada", "wrote", "it", "in", "London", "Zürich", "naïve", "cafe\u0301", "東京", "大阪です", "🙂", "👩‍👩‍👧", "¿Qué?", "ﬁ", "...", "a"]
)
blanks = st.sampled_from([" ", "  ", "\n", "\t", "\u00a0", "\u3000", "", ", "])
texts = st.lists(st.tuples(words, blanks), min_size=1, max_size=14).map(lambda parts: "".join(word + blank for word, blank in parts))
anything = st.one_of(texts, st.text(max_size=40)).filter(lambda text: bool(text.strip()))


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Makes a model's folder and that of its graph, once for each set of settings. Read only."""
    made: dict[str, tuple[Path, Path]] = {}

    def one(family: str, task: str, **options: Any) -> tuple[Path, Path]:
        key = json.dumps([family, task, options], sort_keys=True)
        if key not in made:
            root = tmp_path_factory.mktemp("encoder-example")
            model = source(root / "model", family, task, **options)
            made[key] = model, graph_of(model, root / "onnx", task)
        return made[key]

    return one


def pipeline(task: str, folder: Path, **options: Any) -> Any:
    import transformers

    model, tokenizer = loaded(folder, task)
    make: Any = transformers.pipeline
    return make(task, model=model, tokenizer=tokenizer, device="cpu", **options)


def classified(model: Path, text: Any, **options: Any) -> list[dict[str, Any]]:
    """Every class of the text with its probability, by transformers' pipeline."""
    found = pipeline("text-classification", model, top_k=None)(text, **options)
    return found[0] if isinstance(found[0], list) else found


def close(found: float, wanted: float) -> bool:
    return abs(found - wanted) <= 2e-4


# Classes


@pytest.mark.parametrize("family", some(["Bert", "Roberta", "XLMRoberta"], 3))
def test_classes_have_the_names_and_probabilities_of_transformers_pipeline(folders: Folders, family: str) -> None:
    names = {0: "contradiction", 1: "neutral", 2: "entailment"}
    model, graph = folders(family, "text-classification", id2label=names, label2id={name: number for number, name in names.items()})
    text, pair = "Ada wrote it.", "It rains in 東京."
    script = Script(graph)
    for options, given_text in (({}, text), ({"pair": pair}, {"text": text, "text_pair": pair})):
        found, theirs = script("classes", text, **options), classified(model, given_text)
        assert [row["label"] for row in found] == [row["label"] for row in theirs]
        assert all(close(mine["score"], other["score"]) for mine, other in zip(found, theirs, strict=True))
    assert run(graph, text, pair) == [script("classes", text), script("classes", pair)]


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, [0.5, 0.5, 0.5]),
        ({"threshold": 0.3}, [0.3, 0.3, 0.3]),
        ({"thresholds": [0.2, 0.9, 0.5]}, [0.2, 0.9, 0.5]),
        ({"thresholds": {"b": 0.9, "a": 0.2}}, [0.2, 0.9, 0.5]),
        ({"thresholds": {"0": 0.2, "1": 0.9}}, [0.2, 0.9, 0.5]),
        ({"thresholds": [0.2, None]}, [0.2, 0.5, 0.5]),
    ],
)
def test_labels_of_their_own_are_chosen_by_their_thresholds(
    folders: Folders, tmp_path: Path, said: dict[str, Any], wanted: list[float]
) -> None:
    model, graph = folders(
        "Bert", "text-classification", id2label={0: "a", 1: "b", 2: "c"}, label2id={"a": 0, "b": 1, "c": 2},
        problem_type="multi_label_classification",
    )  # fmt: skip
    folder = shutil.copytree(graph, tmp_path / "onnx")
    zoo.edit_json(folder / "config.json", **said)
    found, theirs = Script(folder)("classes", TEXTS[3]), classified(model, TEXTS[3])
    assert [row["label"] for row in found] == [row["label"] for row in theirs]
    assert all(close(mine["score"], other["score"]) for mine, other in zip(found, theirs, strict=True))
    by_name = dict(zip("abc", wanted, strict=True))
    assert (task_profile.thresholds_of(folder) or (0.5, 0.5, 0.5)) == tuple(wanted), "the check reads the same"
    assert {row["label"]: row["threshold"] for row in found} == by_name
    assert all(row["chosen"] == (row["score"] >= by_name[row["label"]]) for row in found)


def test_a_measure_is_a_value_and_not_a_probability(folders: Folders) -> None:
    import torch

    model, graph = folders("DistilBert", "text-classification", num_labels=1, problem_type="regression")
    live, tokenizer = loaded(model, "text-classification")
    with torch.inference_mode():
        wanted = float(live(**tokenizer(TEXTS[0], return_tensors="pt")).logits[0, 0])
    (row,) = Script(graph)("classes", TEXTS[0])
    assert row.keys() == {"label", "value"} and row["value"] == pytest.approx(wanted, abs=1e-4)


def test_a_single_output_that_nothing_explains_is_shown_both_ways(folders: Folders) -> None:
    model, graph = folders("DistilBert", "text-classification", num_labels=1)
    (row,) = Script(graph)("classes", TEXTS[0])
    assert close(row["score"], classified(model, TEXTS[0])[0]["score"])
    assert close(row["score"], 1 / (1 + np.exp(-row["value"])))


def test_a_text_that_is_too_long_is_cut_and_that_is_said(folders: Folders) -> None:
    model, graph = folders("Bert", "text-classification")
    long = " ".join(TEXTS * 3)
    done = attempt(graph, long)
    assert f"Only {LENGTH} of " in done.stderr and "the rest is cut off" in done.stderr
    wanted = classified(model, long, truncation=True)
    assert all(close(mine["score"], other["score"]) for mine, other in zip(json.loads(done.stdout), wanted, strict=True))


def test_the_side_that_is_cut_is_the_tokenizers(folders: Folders) -> None:
    model, graph = folders("Bert", "text-classification", tokens={"truncation_side": "left"})
    long = " ".join(TEXTS * 3)
    wanted = classified(model, long, truncation=True)
    found = Script(graph)("classes", long)
    assert all(close(mine["score"], other["score"]) for mine, other in zip(found, wanted, strict=True))


def test_padding_and_truncation_that_a_tokenizer_json_has_are_not_applied(folders: Folders, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    _, graph = folders("Bert", "token-classification")
    folder = shutil.copytree(graph, tmp_path / "onnx")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=40)
    tokenizer.enable_truncation(12)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert Script(folder)("spans", TEXTS[0]) == Script(graph)("spans", TEXTS[0])


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "mpnet", "longformer", "distilbert", "modernbert"])
def test_a_model_reads_as_many_tokens_as_the_check_believes(folders: Folders, tmp_path: Path, kind: str) -> None:
    config = {"model_type": kind, "max_position_embeddings": 40, "pad_token_id": 1}
    _, graph = folders("Bert", "text-classification")
    folder = shutil.copytree(graph, tmp_path / "onnx")
    zoo.edit_json(folder / "config.json", **config)
    assert Script(folder).model.length == task_profile.context_length(config)


# Spans


def wanted_spans(theirs: list[dict[str, Any]], text: str) -> list[tuple[str, str, int, int]]:
    """transformers' spans without the spaces at their ends."""
    rows = []
    for row in theirs:
        part = text[row["start"] : row["end"]]
        start, end = row["start"] + len(part) - len(part.lstrip()), row["start"] + len(part.rstrip())
        if start < end:
            rows.append((row["entity_group"], text[start:end], start, end))
    return rows


def assert_same_spans(found: list[dict[str, Any]], theirs: list[dict[str, Any]], text: str) -> None:
    assert [(row["label"], row["text"], row["start"], row["end"]) for row in found] == wanted_spans(theirs, text)
    scores = [row["score"] for row in theirs if text[row["start"] : row["end"]].strip()]
    assert all(close(row["score"], float(score)) for row, score in zip(found, scores, strict=True))


@pytest.mark.parametrize("family", some(["Bert", "Roberta", "XLMRoberta"], 3))
def test_spans_of_any_text_are_those_of_transformers_pipeline(folders: Folders, family: str) -> None:
    model, graph = folders(family, "token-classification")
    wanted, script = pipeline("token-classification", model, aggregation_strategy="simple", stride=LENGTH // 4), Script(graph)
    seen: set[str] = set()

    @MANY
    @given(anything)
    def same(text: str) -> None:
        found = script("spans", text)
        assert_same_spans(found, wanted(text), text)
        assert all(text[row["start"] : row["end"]] == row["text"] == row["text"].strip() != "" for row in found)
        seen.update(row["label"] for row in found)

    same()
    assert seen, "the model finds something"


def test_spans_of_a_long_text_come_from_all_of_it(folders: Folders) -> None:
    names = ["B-PER", "I-PER", "B-LOC", "I-LOC", "ORG"]
    model, graph = folders(
        "Bert", "token-classification", id2label=dict(enumerate(names)), label2id={name: number for number, name in enumerate(names)}
    )
    long = "  ".join(TEXTS * 3)
    script = Script(graph)
    found = script("spans", long)
    assert len(script.outputs()) > 3 and found[-1]["end"] > len(long) * 0.9
    assert_same_spans(found, pipeline("token-classification", model, aggregation_strategy="simple", stride=LENGTH // 4)(long), long)
    starts = [row["start"] for row in found]
    assert starts == sorted(set(starts)), "windows overlap, their spans don't"


# Answers


def answers_by_the_documented_algorithm(
    pair: tuple[Any, Any], question: str, context: str, length: int, stride: int
) -> tuple[list[tuple[float, int, int]], float]:
    """Spans with their scores, the best first, and the score of none, as transformers' examples evaluate SQuAD 1.1 and 2.0."""
    import torch

    live, tokenizer = pair
    parts = tokenizer(
        question, context, truncation="only_second", max_length=length, stride=stride, return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )  # fmt: skip
    found: list[tuple[float, int, int]] = []
    nothing = None
    for number in range(len(parts["input_ids"])):
        inputs = {name: torch.tensor([parts[name][number]]) for name in ("input_ids", "attention_mask", "token_type_ids") if name in parts}
        inputs = {name: value for name, value in inputs.items() if name in inspect.signature(live.forward).parameters}
        with torch.inference_mode():
            outputs = live(**inputs)
        start, end = outputs.start_logits[0].numpy(), outputs.end_logits[0].numpy()
        offsets = [pair if of == 1 else None for pair, of in zip(parts["offset_mapping"][number], parts.sequence_ids(number), strict=True)]
        cls = parts["input_ids"][number].index(tokenizer.cls_token_id)
        score = float(start[cls] + end[cls])
        nothing = score if nothing is None else min(nothing, score)
        for first in range(len(start)):
            for last in range(len(end)):
                if offsets[first] is None or offsets[last] is None or last < first or last - first + 1 > 30:
                    continue
                found.append((float(start[first] + end[last]), offsets[first][0], offsets[last][1]))
    assert nothing is not None
    rows = [row for row in sorted(found, key=lambda row: -row[0]) if context[row[1] : row[2]].strip()]
    return rows, nothing


@pytest.mark.parametrize("family", some(["Bert", "Roberta", "DistilBert", "XLMRoberta"], 4))
def test_answers_of_any_text_are_those_of_the_documented_algorithm(folders: Folders, family: str) -> None:
    model, graph = folders(family, "question-answering")
    script, live = Script(graph), loaded(model, "question-answering")

    @settings(MANY, max_examples=25)
    @given(st.sampled_from(["Who wrote it?", "Où?", "東京?"]), anything)
    def same(question: str, context: str) -> None:
        wanted, nothing = answers_by_the_documented_algorithm(live, question, context, 40, 8)
        found = script("answers", question, context=context, length=40, stride=8, top=3)
        assert all(context[row["start"] : row["end"]] == row["answer"] for row in found)
        if not wanted:
            assert [row["answer"] for row in found] == [""]
            return
        assert found[0]["answer"] == context[wanted[0][1] : wanted[0][2]].strip()
        assert [row["score"] for row in found] == sorted((row["score"] for row in found), reverse=True)
        unsure = script("answers", question, context=context, length=40, stride=8, top=1, no_answer=True)
        if abs(nothing - wanted[0][0]) > 1e-4:
            assert (unsure[0]["answer"] == "") == (nothing > wanted[0][0])

    same()


def test_a_long_context_is_read_to_its_end_and_the_question_is_never_the_answer(folders: Folders) -> None:
    model, graph = folders("Bert", "question-answering")
    script, context = Script(graph), " ".join(TEXTS * 4)
    found = script("answers", "Who wrote it?", context=context, top=10**6)
    assert len(script.outputs()) > 4
    assert max(row["end"] for row in found) == len(context), "its last token can end an answer"
    assert len({(row["start"], row["end"]) for row in found}) == len(found)
    live = loaded(model, "question-answering")
    wanted, _ = answers_by_the_documented_algorithm(live, "Who wrote it?", context, LENGTH, LENGTH // 2)
    assert found[0]["answer"] == context[wanted[0][1] : wanted[0][2]].strip()


def test_questions_without_a_context_and_questions_that_fill_the_model_are_refused(folders: Folders) -> None:
    _, graph = folders("Bert", "question-answering")
    alone = attempt(graph, "Who wrote it?")
    assert alone.returncode == 1 and alone.stderr == "A question is asked about a text: add --context TEXT\n"
    long = attempt(graph, " ".join(TEXTS), "--context", TEXTS[0])
    assert long.returncode == 1 and "leaves no place for a context" in long.stderr


# Masks


@pytest.mark.parametrize("family", some(["Bert", "Roberta", "XLMRoberta"], 3))
def test_masks_are_filled_as_by_transformers_pipeline(folders: Folders, family: str) -> None:
    model, graph = folders(family, "fill-mask")
    wanted, script = pipeline("fill-mask", model), Script(graph)
    mask = wanted.tokenizer.mask_token
    for text in (f"Ada {mask} it.", f"{mask} wrote it", f"東京 {mask}🙂", f"Ada {mask} it in {mask}."):
        theirs: Any = wanted(text)
        found: Any = script("fillings", text.replace(mask, "[MASK]"))
        for mine, other in zip(found, theirs, strict=True) if text.count(mask) > 1 else [(found, theirs)]:
            assert [row["token"] for row in mine] == [row["token"] for row in other]
            assert [row["text"] for row in mine] == [row["token_str"] for row in other]
            assert all(close(row["score"], one["score"]) for row, one in zip(mine, other, strict=True))
        if text.count(mask) == 1:
            assert [row["sequence"] for row in found] == [row["sequence"] for row in theirs]
    done = attempt(graph, "Nothing is hidden.")
    assert done.returncode == 1 and f"The text needs a {mask} (or [MASK])" in done.stderr


# Vectors


def test_a_model_without_pooling_gives_a_vector_for_each_token(folders: Folders) -> None:
    import torch

    model, graph = folders("Bert", "feature-extraction")
    live, tokenizer = loaded(model, "feature-extraction")
    batch = tokenizer(TEXTS[3], return_tensors="pt")
    with torch.inference_mode():
        wanted = live(**batch).last_hidden_state[0].numpy()
    found = run(graph, TEXTS[3])
    assert found["tokens"] == tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    assert np.allclose(found["vectors"], wanted, atol=1e-4)


def test_inputs_and_outputs_can_be_written_for_numpy(folders: Folders, tmp_path: Path) -> None:
    _, graph = folders("Bert", "token-classification")
    run(graph, TEXTS[0], "--npz", str(tmp_path / "one.npz"))
    run(graph, " ".join(TEXTS * 3), "--npz", str(tmp_path / "more.npz"))
    with np.load(tmp_path / "one.npz") as one, np.load(tmp_path / "more.npz") as more:
        assert sorted(one) == ["attention_mask", "input_ids", "logits", "token_type_ids"]
        assert one["logits"].shape == (*one["input_ids"].shape, 5)
        assert {"0.logits", "1.logits", "3.input_ids"} <= set(more)


# Vectors of texts


PROMPTS = {"query": "find: ", "passage": "text: ", "clustering": "Group: "}


@pytest.fixture(scope="session")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of sentence-transformers and that of its graph. Read only."""
    root = tmp_path_factory.mktemp("sentence-example")
    model = source(root / "model", "Bert", "feature-extraction")
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "mean"}))
    rows = [{"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))]  # fmt: skip
    (model / "modules.json").write_text(json.dumps(rows))
    return model, sentence_graph_of(model, root / "onnx")


def with_settings(graph: Path, folder: Path, lengths: dict[str, Any] | None = None, **values: Any) -> Path:
    """A copy of a graph's folder with these settings of sentence-transformers."""
    copied = shutil.copytree(graph, folder)
    (copied / "config_sentence_transformers.json").write_text(json.dumps(values))
    (copied / "sentence_bert_config.json").write_text(json.dumps(lengths or {}))
    return copied


def vectors_of(model: Path, *given_texts: str, length: int = LENGTH) -> np.ndarray:
    """The vectors (N, D) of texts by transformers and the check's own arithmetic."""
    import torch

    live, tokenizer = loaded(model, "feature-extraction")
    found = []
    for text in given_texts:
        batch = tokenizer(text, return_tensors="pt", truncation=True, max_length=length)
        with torch.inference_mode():
            found.append(SentencePooling(model)(live(**batch).last_hidden_state.numpy(), batch["attention_mask"].numpy())[0])
    return np.stack(found)


@pytest.mark.parametrize(
    ("options", "before"),
    [({}, "Group: "), ({"prompt": "query"}, "find: "), ({"prompt_text": ""}, ""), ({"prompt_text": "so: "}, "so: ")],
)
def test_a_prompt_stands_before_the_texts_as_asked_or_by_default(
    sentences: tuple[Path, Path], tmp_path: Path, options: dict[str, Any], before: str
) -> None:
    model, graph = sentences
    folder = with_settings(graph, tmp_path / "onnx", prompts=PROMPTS, default_prompt_name="clustering")
    found = Script(folder)("vectors", TEXTS[:3], **options)
    assert np.allclose(found["embeddings"], vectors_of(model, *(before + text for text in TEXTS[:3])), atol=1e-4)
    assert found["size"] == 48 and np.allclose(np.diag(found["similarity"]), 1, atol=1e-5)


def test_a_query_is_compared_with_texts_each_with_its_own_prompt(sentences: tuple[Path, Path], tmp_path: Path) -> None:
    model, graph = sentences
    folder = with_settings(graph, tmp_path / "onnx", prompts=PROMPTS, default_prompt_name="clustering", similarity_fn_name="dot")
    found = run(folder, "--query", TEXTS[5], *TEXTS[:2])
    wanted = vectors_of(model, "find: " + TEXTS[5], "text: " + TEXTS[0], "text: " + TEXTS[1])
    assert np.allclose(found["embeddings"], wanted, atol=1e-4)
    assert np.allclose(found["similarity"], wanted[1:] @ wanted[0], atol=1e-3)
    plain = Script(with_settings(graph, tmp_path / "plain"))("vectors", TEXTS[:2], query=TEXTS[5])
    assert np.allclose(plain["embeddings"], vectors_of(model, TEXTS[5], *TEXTS[:2]), atol=1e-4), "no prompts, none is added"


@pytest.mark.parametrize("kind", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity_is_the_models_own_measure(sentences: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    model, graph = sentences
    found = Script(with_settings(graph, tmp_path / "onnx", similarity_fn_name=kind))("vectors", TEXTS[:2])
    one, two = vectors_of(model, *TEXTS[:2]).astype(np.float64)
    wanted = {
        "cosine": one @ two / np.sqrt((one @ one) * (two @ two)), "dot": one @ two, "euclidean": -np.sqrt(((one - two) ** 2).sum()),
        "manhattan": -np.abs(one - two).sum(),
    }  # fmt: skip
    assert found["similarity"][0][1] == pytest.approx(wanted[kind], abs=1e-3) == found["similarity"][1][0]


def test_texts_are_cut_and_put_into_lower_case_as_the_settings_say(sentences: tuple[Path, Path], tmp_path: Path) -> None:
    from tokenizers import Tokenizer, normalizers

    model, graph = sentences
    short = Script(with_settings(graph, tmp_path / "short", {"max_seq_length": 9}))("vectors", [TEXTS[1]])
    assert np.allclose(short["embeddings"], vectors_of(model, TEXTS[1], length=9), atol=1e-4)
    lower = with_settings(graph, tmp_path / "lower", {"do_lower_case": True})
    cased = Tokenizer.from_file(str(lower / "tokenizer.json"))
    cased.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=True)
    cased.save(str(lower / "tokenizer.json"))
    found = Script(lower)("vectors", [TEXTS[2]])
    assert np.allclose(found["embeddings"], vectors_of(model, TEXTS[2]), atol=1e-4)


def test_prompts_that_pooling_leaves_out_are_refused(sentences: tuple[Path, Path], tmp_path: Path) -> None:
    _, graph = sentences
    folder = with_settings(graph, tmp_path / "onnx", prompts=PROMPTS, default_prompt_name="clustering")
    zoo.edit_json(folder / "1_Pooling" / "config.json", include_prompt=False)
    done = attempt(folder, TEXTS[0])
    assert done.returncode == 1 and "use SentenceTransformer" in done.stderr
    assert run(folder, TEXTS[0], "--prompt-text", "")["size"] == 48
    unknown = attempt(folder, TEXTS[0], "--prompt", "nonsense")
    assert unknown.returncode == 1 and "it has: query, passage, clustering" in unknown.stderr


# Each task of each family, by the stage itself


def exported(folder: Path, family: str, task: str) -> tuple[Path, Path]:
    """A model's folder, and what the stage `onnx` makes of it."""
    from handlers.onnx.export import stage
    from tests.onnx.conftest import make_context, silent

    model = source(folder / "model", family, task)
    context = make_context(folder / "work", "onnx", {"merge": model}, model, strategy="legacy-eager")
    stage.run(context, silent())
    return model, Path(context.staging)


@pytest.mark.parametrize(("family", "task"), some([(family, task) for task in HEADS for family in FAMILIES], 30))
def test_an_export_runs_from_its_folder_alone(tmp_path: Path, family: str, task: str) -> None:
    import torch

    model, made = exported(tmp_path, family, task)
    folder = shutil.move(made, tmp_path / "published")
    live, tokenizer = loaded(model, task)
    text, words, pair = "Ada wrote it.", ["Ada wrote it."], None
    if task == "fill-mask":
        text, words = f"Ada {tokenizer.mask_token} it.", ["Ada [MASK] it."]
    elif task == "question-answering":
        text, pair, words = "Who?", "Ada wrote it.", ["Who?", "--context", "Ada wrote it."]
    assert run(folder, *words, "--npz", str(tmp_path / "seen.npz"))
    batch = tokenizer(text, pair, return_tensors="pt")
    with torch.inference_mode():
        wanted = live(**{name: value for name, value in batch.items() if name in inspect.signature(live.forward).parameters})
    with np.load(tmp_path / "seen.npz") as seen:
        assert seen["input_ids"].tolist() == batch["input_ids"].tolist()
        outputs = [name for name in seen.files if name in wanted]
        assert outputs and all(np.allclose(seen[name], wanted[name].numpy(), atol=1e-3) for name in outputs)
