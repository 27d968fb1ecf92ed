"""What another program makes of an artifact is told beside the verdict: the same, something else, or that it can't read it.

Most of it is tried with a stand-in that answers what the test wants; the real reader is slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.contract.jobs.figures import ForeignFigures
from daemon.contract.jobs.messages import StageContext
from handlers.onnx.options import OnnxOptions
from handlers.validate.checks.live.samples import Sample
from handlers.validate.engines.registry import EngineSpec, load
from handlers.validate.engines.task_profile import ValidatedTask, subject_of
from handlers.validate.outside import optimum_reader
from handlers.validate.outside.optimum_reader import OwnAnswer
from handlers.validate.workers.drivers import drive
from tests.onnx.conftest import Exported, make_context
from tests.toolchains.conftest import calls, offered, stand_in

LIMIT = 1e-3
ANSWER = """
import numpy
shutil.copyfile(options['inputs'], {seen!r})
numpy.savez(options['outputs'], **{{name: numpy.asarray(value, numpy.float32) for name, value in {made!r}.items()}})
answer = {{
    'reader': 'ORTModelForX', 'files': [], 'adjusted': [], 'load_seconds': 0.0, 'run_seconds': 0.0, 'outputs': {{}}, 'versions': {{}}
}}
"""
ROWS = np.asarray([[0.0, 1.0], [2.0, 0.0]], np.float32)


def filed(folder: Path, rows: np.ndarray = ROWS) -> Path:
    """Rows as the stage keeps them."""
    np.save(folder / "0.npy", rows)
    return folder / "0.npy"


@pytest.fixture
def context(tmp_path: Path) -> StageContext:
    """An attempt of the stage `check-onnx`."""
    return make_context(tmp_path / "job", "check-onnx", {}, tmp_path)


def sample(ids: list[int], tokens: list[int], keep: list[int], types: list[int] | None = None) -> Sample:
    return Sample("a text", ids, ids, tokens, None, keep, Path("unused"), types)


@dataclass(frozen=True)
class Told:
    """What `compare` gave, what the reader was fed with, and the options that it got."""

    figures: ForeignFigures | None
    fed: dict[str, list[Any]]
    options: dict[str, str]


def told(context: StageContext, folder: Path, made: dict[str, Any], task: str, one: Sample) -> Told:
    """The figures when the reader answers `made`, of an artifact that our engine says ROWS and the sample's tokens of."""
    seen = folder / "seen.npz"
    chain = stand_in(folder / "chain", ANSWER.format(seen=str(seen), made=made))
    figures = optimum_reader.compare(offered(context, chain), OwnAnswer(folder, ValidatedTask(task), one, filed(folder), one.tokens), LIMIT)
    with np.load(seen) as archive:
        fed = {name: archive[name].tolist() for name in archive.files}
    return Told(figures, fed, calls(chain)[0][1])


def test_without_the_toolchain_nothing_is_asked_and_nothing_said(context: StageContext, tmp_path: Path) -> None:
    one = sample([3, 4], [5], [0, 1])
    assert optimum_reader.compare(context, OwnAnswer(tmp_path, ValidatedTask(), one, filed(tmp_path), [5]), LIMIT) is None
    assert optimum_reader.sentence("onnx", None) is None


def test_a_reader_that_says_the_same_leaves_figures_and_no_warning(context: StageContext, tmp_path: Path) -> None:
    made = {"logits": [[[9, 9], *ROWS.tolist()]], "tokens": [[5]]}
    said = told(context, tmp_path, made, "text-generation", sample([3, 4], [5], [1, 2]))
    assert said.figures is not None and said.figures.written() == {
        "engine": "optimum ORTModelForX", "greedy_identical": True, "error_max_absolute": 0.0, "adjusted": [], "differs": False
    }  # fmt: skip
    assert optimum_reader.sentence("onnx", said.figures) is None
    assert said.fed == {"input_ids": [[3, 4, 5]]}
    assert {"task": "text-generation", "new_tokens": "1", "prompt": "2", "threads": "2"}.items() <= said.options.items()
    assert not (Path(context.temporary) / "foreign").exists()


def test_other_outputs_are_named_with_their_distance(context: StageContext, tmp_path: Path) -> None:
    made = {"logits": [[[9, 9], [0, 1], [2, 0.25]]], "tokens": [[5]]}
    said = told(context, tmp_path, made, "text-generation", sample([3, 4], [5], [1, 2]))
    assert said.figures is not None and said.figures.differs and said.figures.error_max_absolute == 0.25
    text = optimum_reader.sentence("onnx-int8", said.figures)
    assert text is not None and text.startswith("onnx-int8: optimum ORTModelForX computes other outputs from the same files (max |Δ| 0.25)")


def test_outputs_that_are_not_finite_differ(context: StageContext, tmp_path: Path) -> None:
    made = {"logits": [[["nan", 1], [2, 0]]], "tokens": [[5]]}
    said = told(context, tmp_path, made, "text-generation", sample([3], [5], [0, 1]))
    assert said.figures is not None and said.figures.differs and said.figures.error_max_absolute == float("inf")


def test_other_tokens_from_the_same_outputs_are_the_caches_doing(context: StageContext, tmp_path: Path) -> None:
    made = {"logits": [ROWS.tolist()], "tokens": [[6]]}
    said = told(context, tmp_path, made, "text-generation", sample([3], [5], [0, 1]))
    assert said.figures is not None and said.figures.greedy_identical is False and not said.figures.differs
    assert "decodes other tokens" in str(optimum_reader.sentence("onnx", said.figures))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise KeyError('qwen9')", "optimum_reader ended with exit code 1 and no answer: KeyError: 'qwen9'"),
        (ANSWER.format(seen="/dev/null", made={"logits": [[[1.0]]]}), "it gives rows of the shape (1, 1), and (2, 2) were expected"),
        (ANSWER.format(seen="/dev/null", made={"other": [1.0]}), "it gives other, and no logits"),
    ],
)  # fmt: skip
def test_a_reader_that_fails_is_a_figure_and_a_warning(context: StageContext, tmp_path: Path, body: str, reason: str) -> None:
    one = sample([3], [], [0])
    own = OwnAnswer(tmp_path, ValidatedTask(), one, filed(tmp_path), [])
    figures = optimum_reader.compare(offered(context, stand_in(tmp_path / "chain", body)), own, LIMIT)
    assert figures is not None and set(figures.written()) == {"engine", "failed"}
    text = optimum_reader.sentence("onnx", figures)
    assert text is not None and "other programs may be able to" in text
    assert reason in text


def test_an_encoder_decoder_is_fed_its_start_token(context: StageContext, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"decoder_start_token_id": 7}')
    made = {"logits": [ROWS.tolist()], "tokens": [[5, 6]]}
    said = told(context, tmp_path, made, "text2text-generation", sample([3, 4, 2], [5, 6], [0, 1]))
    assert said.fed == {"input_ids": [[3, 4, 2]], "decoder_input_ids": [[7, 5]]}
    assert said.figures is not None and said.figures.greedy_identical is True


def test_an_answers_start_and_end_are_compared_and_nothing_is_decoded(context: StageContext, tmp_path: Path) -> None:
    made = {"start_logits": [ROWS[0].tolist()], "end_logits": [ROWS[1].tolist()]}
    said = told(context, tmp_path, made, "question-answering", sample([3, 4], [], [0, 1], types=[0, 1]))
    assert said.fed == {"input_ids": [[3, 4]], "token_type_ids": [[0, 1]]}
    assert said.figures is not None and said.figures.greedy_identical is None and not said.figures.differs


def real(optimum: Path, folder: Path, context: StageContext, length: int = 9, count: int = 8) -> ForeignFigures:
    """The real reader beside our own engine, of one sample of `length` random tokens."""
    subject = subject_of(folder)
    ids = np.random.default_rng(3).integers(2, 300, length).tolist()
    spec = EngineSpec(engine="onnx", folder=str(folder), task=subject.task)
    driver = drive(spec, load(spec))
    tokens = [] if subject.kind == "encoder" else driver.greedy(ids, count, least=count, stop=False, verify=False).tokens
    rows = driver.rows(ids, tokens, None)
    one = sample(ids, tokens, list(range(len(rows))))
    own = OwnAnswer(folder, subject, one, filed(Path(context.temporary), rows), tokens)
    figures = optimum_reader.compare(offered(context, optimum), own, LIMIT)
    assert figures is not None
    return figures


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_real_reader_says_the_same_of_a_language_model(optimum: Path, context: StageContext, qwen3_int8: Exported) -> None:
    figures = real(optimum, qwen3_int8.folder, context)
    assert figures.greedy_identical and figures.error_max_absolute < LIMIT, figures


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_real_reader_reads_a_language_model_without_a_cache(
    optimum: Path, million: Path, context: StageContext, tmp_path: Path
) -> None:
    from handlers.onnx.export import stage
    from tests.onnx.conftest import silent

    made_for = make_context(tmp_path / "export", "onnx", {"merge": million}, million)
    options = made_for.work.options(OnnxOptions).model_copy(update={"cache": False})
    stage.run(made_for.model_copy(update={"work": made_for.work.with_options(options)}), silent())
    figures = real(optimum, Path(made_for.staging), context)
    assert figures.greedy_identical and figures.error_max_absolute < LIMIT, figures
