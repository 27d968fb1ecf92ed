"""Each damage of a GGUF file or a Modelfile is caught for its reason, and sound files of all kinds of models raise no alarm."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.exports.twins import reasons
from tests.gguf import damage, forms, kinds
from tests.gguf.damage import CASES, Q8, SAID, Damage, all_normal, moved, stated
from tests.validate.bench import Bench, measured
from tests.validate.damage_files import Case
from tests.validate.sabotage import Lab

SCORES, TYPES = "tokenizer.ggml.scores", "tokenizer.ggml.token_type"
PIECES = tuple(Case(name, (Q8,), damage, words) for name, damage, words in (
    ("another space before a text", stated("tokenizer.ggml.add_space_prefix", lambda value: not value), "reads"),
    ("a beginning that is lost", stated("tokenizer.ggml.add_bos_token", lambda value: not value), "reads"),
    ("an end behind each prompt", stated("tokenizer.ggml.add_eos_token", lambda value: not value), "reads"),
    ("another beginning", stated("tokenizer.ggml.bos_token_id", 7), "reads|bos_token_id"),
    ("another end", stated("tokenizer.ggml.eos_token_id", 7), "special tokens|named_ends|the end of a text"),
    ("tokens changed places", stated("tokenizer.ggml.tokens", moved), "gives id"),
    ("pieces joined in another order", stated(SCORES, lambda scores: scores[::-1]), "joins '.*' before"),
    ("special tokens that are texts", stated(TYPES, all_normal), "of the kind 'normal'"),
    ("special tokens that are added words", stated(TYPES, lambda types: [4 if one == 3 else one for one in types]), "of the kind 'added'"),
    ("bytes that are texts", stated(TYPES, lambda types: [1 if one == 6 else one for one in types]), "decodes .* as .<0x"),
    ("another template", stated("tokenizer.chat_template", lambda text: text.replace("[", "(")), "chat template writes"),
))  # fmt: skip
"""What is wrong in a vocabulary of SentencePiece's kind."""
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models and their sound files are made, each when it is asked for."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="module")
def bench(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return lab.bench(tmp_path_factory.mktemp("bench") / "scratch")


@pytest.fixture(scope="module")
def sound(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folder of a sound file, once it is made."""
    return []


@pytest.mark.parametrize("variant", ["gguf-q4_k_m", "gguf-q5_k_m", "gguf-q6_k", "gguf-q8_0", "gguf-f16", "gguf-bf16"])
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_sound_file_is_the_model_that_its_own_weights_give(kind: str, variant: str, made: Path) -> None:
    answer = damage.answered(kind, damage.artifact(kind, variant, made), made)
    assert reasons(answer, variant) == ""
    assert answer.error is not None and answer.error < answer.limit / 4
    assert answer.rounding is not None and abs(answer.rounding.slope - 1) < 0.02


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_damage_is_caught_with_its_reason(case: Damage, made: Path, tmp_path: Path) -> None:
    answer = damage.answered(case.kind, case.apply(damage.artifact(case.kind, case.variant, made), tmp_path / "damaged"), made)
    said = reasons(answer, case.variant)
    assert re.search(case.words, said), (said, answer)


@pytest.mark.parametrize("case", SAID, ids=lambda case: case.name)
def test_each_wrong_word_beside_the_weights_is_caught_with_its_reason(
    case: Case, lab: Lab, bench: Bench, sound: list[Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not sound:
        sound.append(forms.make(Q8, lab.made("sound", "pytorch"), tmp_path_factory.mktemp("sound"))[0])
        assert bench.check(Q8, sound[0]).reasons == ()
    folder = shutil.copytree(sound[0], tmp_path / "damaged")
    case.damage(folder)
    assert re.search(str(case.words), said := " | ".join(bench.checked(Q8, folder).reasons)), said


@pytest.fixture(scope="module")
def measured_pieces() -> dict[str | None, tuple[Bench, Path]]:
    """Where a tokenizer puts spaces → the model that has it, measured, and the folder of its sound file."""
    return {}


@pytest.fixture(params=["first", None], ids=["a space before a text", "no space"])
def pieces(
    request: pytest.FixtureRequest,
    measured_pieces: dict[str | None, tuple[Bench, Path]],
    libraries: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Bench, Path]:
    """A model whose tokenizer is of SentencePiece's kind, measured, and the folder of its sound file."""
    if request.param not in measured_pieces:
        place = tmp_path_factory.mktemp("pieces")
        model = damage.model("Mistral", place / "model")
        template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
        if request.param is not None:
            kinds.with_spaces(model, request.param, template)
        (model / "chat_template.jinja").write_text(template)
        bench, folder = measured(model, None, model, place / "scratch"), forms.make(Q8, model, place / "work")[0]
        assert bench.check(Q8, folder).reasons == ()
        measured_pieces[request.param] = bench, folder
    return measured_pieces[request.param]


@pytest.mark.parametrize("case", PIECES, ids=lambda case: case.name)
def test_each_wrong_word_of_a_vocabulary_of_pieces_is_caught_with_its_reason(
    case: Case, pieces: tuple[Bench, Path], tmp_path: Path
) -> None:  # fmt: skip
    bench, sound = pieces
    folder = shutil.copytree(sound, tmp_path / "damaged")
    case.damage(folder)
    assert re.search(str(case.words), said := " | ".join(bench.checked(Q8, folder).reasons)), said


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q5_0", "Q5_1"])
def test_what_llama_cpps_quantizer_makes_of_any_matrix_is_within_the_bounds_of_rounding(kind: str) -> None:
    from handlers.validate.twins import rounding

    for name, matrix in damage.matrices().items():
        for importance in damage.IMPORTANCES:
            weight = damage.quantized(matrix, kind, importance)
            assert rounding.misrounded(weight, matrix) is None, (name, importance)
    weight.data[3, 40] ^= 0x55
    assert rounding.misrounded(weight, matrix) is not None or kind in ("Q5_0", "Q5_1"), "one number does not show in what is searched for"


def test_rows_that_six_bits_can_not_hold_are_no_damage(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from handlers.gguf import comparison

    model = damage.model("Llama", tmp_path / "Llama")
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][100:110] *= 1e-4
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    folder = damage.artifact("Llama", "gguf-q6_k", tmp_path)
    assert comparison.difference(folder, model) is None
    assert reasons(damage.answered("Llama", folder, tmp_path), "gguf-q6_k") == ""
