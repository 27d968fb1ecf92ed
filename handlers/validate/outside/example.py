"""Checks that the example in a folder of graphs works without PyTorch, and one of PyTorch's programs without transformers.

Called by the stages `check-VARIANT` once the artifact's worker has ended. The script runs as a person would run it, in a process that can
import neither transformers nor, for graphs, torch. It must give the tokens that the artifact gave under examination; an encoder's must read
the same token ids and get the same outputs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from handlers.folder.examples import NAME
from handlers.models import sentence
from handlers.models.files import read_json
from handlers.validate.checks.live.samples import Sample
from handlers.validate.engines.media import made_up
from handlers.validate.engines.media.numbered import as_rows
from handlers.validate.engines.task_profile import ValidatedTask
from handlers.validate.folders.programs import NoAnswer, output_of

SECONDS = 900
_ROOM = 16
"""Tokens by which the script's limit is longer than the input: the input is read whole."""
_SENTENCE = "sentence_embedding"
_ALONE = """
import runpy, sys
for name in sys.argv.pop(1).split():
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Wanted:
    """What an encoder's artifact gave for a sample."""

    subject: ValidatedTask
    sample: Sample
    rows: np.ndarray
    """Its outputs (len(sample.keep), V)."""
    limit: float
    """Largest |Δ| that still counts as the same."""


def check(folder: Path, text: str, tokens: Sequence[int], threads: int, ends: frozenset[int] | None = None) -> str | None:
    """Say why the folder's example.py does not make `tokens` of `text`, in one sentence; None when it does, or when there is none.

    `ends`: tokens at one of which it must end before that, and at no other; None where they are not known.
    """
    if not (folder / NAME).is_file():
        return None
    fault, made = _run(folder, ["--tokens", str(len(tokens)), "--ids", "--", text], threads)
    if fault is not None:
        return fault
    if not made or list(made) != list(tokens)[: len(made)]:  # it stops at an end token, the examination doesn't
        return f"its {NAME} gives other tokens than the artifact gave in this check"
    if ends is not None and len(made) < len(tokens) and made[-1] not in ends:
        return f"its {NAME} ends a text after {len(made)} tokens at token {made[-1]}, which is no end of the checkpoint's"
    return None


def check_encoder(folder: Path, wanted: Wanted, threads: int, scratch: Path) -> str | None:
    """Say why the folder's example.py, of an encoder, does not give what the artifact gave; None when it does, or when there is none.

    `scratch`: a folder for the script's outputs. Where the script reads a text in another way on purpose (in lower case, the context
    before the question), it need only answer.
    """
    if not (folder / NAME).is_file():
        return None
    sample = wanted.sample
    with tempfile.TemporaryDirectory(dir=scratch) as made_in:
        file = Path(made_in) / "run.npz"
        limit = str(len(sample.ids) + _ROOM)
        fault, _ = _run(folder, [*_words(folder, wanted), "--length", limit, "--npz", str(file), *_text(folder, wanted)], threads)
        if fault is not None:
            return fault
        with np.load(file) as made:
            outputs = {name: made[name] for name in made.files}
    if "input_ids" not in outputs or outputs["input_ids"].tolist() != [sample.ids]:
        return None if _reads_otherwise(folder, wanted) else f"its {NAME} gives other token ids than the artifact's tokenizer in this check"
    rows = _rows(outputs, wanted)
    if rows is None:
        return None
    error = float(np.abs(rows - wanted.rows).max(initial=0.0)) if rows.shape == wanted.rows.shape else float("inf")
    if not error <= wanted.limit:
        return _differing(error)
    return None


def check_media(folder: Path, wanted: Wanted, threads: int, scratch: Path) -> str | None:
    """As `check_encoder`, for an encoder of pictures or sounds. `scratch`: a folder for a file of the sample too."""
    if not (folder / NAME).is_file():
        return None
    number, subject = wanted.sample.ids[0], wanted.subject
    with tempfile.TemporaryDirectory(dir=scratch) as made_in:
        file, words = Path(made_in) / "run.npz", [str(made_up.write(Path(made_in), number, subject.media == "image", _rate(folder)))]
        fault, _ = _run(folder, [*words, "--text", made_up.asked(number), "--npz", str(file)], threads)
        if fault is not None:
            return fault
        with np.load(file) as made:
            outputs = {name: made[name] for name in made.files}
    if "image_embeds" in outputs:
        rows = np.concatenate([outputs["image_embeds"], outputs["text_embeds"]])[wanted.sample.keep]
    else:
        output = next(outputs[name] for name in ("logits", "last_hidden_state") if name in outputs)
        rows = output if subject.one_answer else as_rows(output)[0][wanted.sample.keep]
    error = float(np.abs(rows - wanted.rows).max(initial=0.0)) if rows.shape == wanted.rows.shape else float("inf")
    return None if error <= wanted.limit else _differing(error)


def _differing(error: float) -> str:
    return f"its {NAME} gives other outputs than the artifact gave in this check (largest difference {error:.3g})"


def _rate(folder: Path) -> int:
    """Give the samples a second that a folder's processor of sounds expects."""
    path = folder / "preprocessor_config.json"
    return int((read_json(path, "read the processor's settings") if path.is_file() else {}).get("sampling_rate") or made_up.RATE)


def _absent(folder: Path) -> tuple[str, ...]:
    """Give what the script must do without: of one that prepares pictures or sounds, what the folder's processor needs may be there."""
    if (folder / "preprocessor_config.json").is_file():
        return "peft", "handlers", "daemon"
    programs = any(folder.glob("*.pt*"))
    return ("transformers", "peft", "handlers", "daemon", *(("onnxruntime",) if programs else ("torch",)))


def _run(folder: Path, words: Sequence[str], threads: int) -> tuple[str | None, Any]:
    """Say why the script does not run, and what it says."""
    command = [sys.executable, "-I", "-c", _ALONE, " ".join(_absent(folder)), str(folder / NAME), *words]
    try:
        return None, json.loads(output_of(NAME, command, SECONDS, OMP_NUM_THREADS=str(threads), RAYON_NUM_THREADS=str(threads)))
    except NoAnswer as why:
        return str(why), None
    except ValueError:
        return f"its {NAME} does not answer in JSON", None


def _words(folder: Path, wanted: Wanted) -> list[str]:
    """Give options by which the script reads what the artifact read."""
    if wanted.subject.task == "question-answering":
        return [f"--context={wanted.sample.text}"]
    return ["--prompt-text="] if (folder / sentence.MODULES).is_file() else []


def _text(folder: Path, wanted: Wanted) -> list[str]:
    sample = wanted.sample
    if wanted.subject.task == "question-answering":
        return ["--", sample.first or sample.text]
    return ["--", _masked(folder, sample) if wanted.subject.task == "fill-mask" else sample.text]


def _masked(folder: Path, sample: Sample) -> str:
    """Give the sample's text with mask tokens in place of its hidden tokens; read as the sample's ids, where that is possible.

    Some tokens hold the space before them, and some mask tokens take it.
    """
    from tokenizers import Tokenizer  # not in every Python that checks

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    offsets = tokenizer.encode(sample.text).offsets
    places = [place for place, pair in enumerate(zip(sample.ids, sample.encoded, strict=True)) if pair[0] != pair[1]]
    if not places:
        return f"{sample.text} [MASK]"
    mask, texts = str(tokenizer.id_to_token(sample.ids[places[0]])), []
    for spaced in (False, True):
        text = sample.text
        for start, end in (offsets[place] for place in reversed(places)):
            part = text[start:end]
            text = f"{text[:start]}{part[: len(part) - len(part.lstrip())] if spaced else ''}{mask}{text[end:]}"
        texts.append(text)
    return next((text for text in texts if tokenizer.encode(text).ids == sample.ids), texts[-1])


def _reads_otherwise(folder: Path, wanted: Wanted) -> bool:
    """Tell whether other token ids are right."""
    if wanted.subject.task == "fill-mask":
        return True  # a part of a word beside a mask may be divided otherwise than inside of the word
    if wanted.subject.task == "question-answering":
        path = folder / "tokenizer_config.json"
        config = read_json(path, "read the tokenizer's settings") if path.is_file() else {}
        return isinstance(config, dict) and config.get("padding_side") == "left"
    lengths = [read_json(path, "read the settings of sentence-transformers") for path in sorted(folder.glob("sentence_*_config.json"))]
    return any(isinstance(settings, dict) and settings.get("do_lower_case") for settings in lengths)


def _rows(outputs: dict[str, np.ndarray], wanted: Wanted) -> np.ndarray | None:
    """Give the rows that the artifact gave; None where the graph lacks the output that they were made of."""
    if wanted.subject.task == "question-answering":
        return np.stack([outputs[name][0] for name in ("start_logits", "end_logits")])
    if wanted.subject.sentence:
        return outputs.get(_SENTENCE)
    rows = outputs["last_hidden_state" if wanted.subject.task == "feature-extraction" else "logits"]
    return rows if wanted.subject.one_answer else rows[0][wanted.sample.keep]
