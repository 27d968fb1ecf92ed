"""What of a checkpoint and its base is not carried along into a published folder, and why, for the report.

Called by the stage `pytorch`. A rule of names: nothing is opened. docs/checkpoints.md has the same table in words.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from daemon.contract.jobs.messages import ADDITIONS, BESIDE
from handlers.models.files import TEMPLATES, TOKENIZER, read_json

PIN_LIST = ".left-out"
"""File of a pin in which the daemon lists what lies at the checkpoint's top and was not pinned."""
_OF_PIN = (PIN_LIST, ".linked", ADDITIONS, BESIDE)
"""What the daemon itself puts into a pin."""
MOST = 60
"""Names that are told of one folder."""
_TRAINING = "training state, which is not needed to use the model"
_MEASURED = "what the training logged or measured"
_MERGED = "its values are in the merged weights"
_OTHER_FORM = "the weights in another form, not those of the merged model"
TRAINING_STEMS = r"(optimizer|scheduler|scaler)(_.*)?"
"""Names of files, without their endings, in which trainers keep the state of their optimizer."""
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (rf"{TRAINING_STEMS}\.(pt|bin)|rng_state.*|random_states_.*|training_args\..*|trainer_state\.json", _TRAINING),
        (r"global_step[0-9]+/|latest|zero_to_fp32\.py|pytorch_model_fsdp.*|optimizer_[0-9]+/|recipe_state\.pt", _TRAINING),
        (r"checkpoint-[0-9]+/", "another checkpoint"),
        (r"(all|train|eval|test|predict)_results\.json|events\.out\..*|runs/|logs?/|wandb/|.*\.log|eval/|completed_steps\.json", _MEASURED),
        (r"adapter_(model|config)\..*", _MERGED),
        (r"(model|pytorch_model|consolidated|ft-model).*\.(safetensors|bin|pth|index\.json)", "the merged weights replace them"),
        (r"ref/", "the trainer's frozen reference adapter"),
        (r".*\.(onnx|onnx\.data|gguf|h5|msgpack|ot|tflite|mlmodel|mlpackage|ckpt|pt|pth|bin|safetensors)", _OTHER_FORM),
        (r"onnx/|openvino/|gguf/|original/|metal/", _OTHER_FORM),
        (r"README.*|.*\.md|LICENSE.*|NOTICE.*|USE_POLICY.*", "a text about another model: the export has its own README"),
        (r"\..*|__pycache__/", "hidden: programs that load a model do not read it"),
        (r".*\.py", "code: it is copied only if auto_map of a configuration names it and merge.trust_remote_code allows it"),
        (r"config\.json|generation_config\.json", "the merged model has its own"),
    )
)
_TOKENIZER = "one complete tokenizer and one chat template are published, those of the checkpoint if it has them"
_UNKNOWN = "as far as ckptd knows, transformers and sentence-transformers do not read this file"


def reason(name: str) -> str:
    """Return why a file, or a folder (with a `/` at its end), is left out."""
    if any(fnmatch.fnmatchcase(name.rstrip("/"), pattern) for pattern in (*TOKENIZER, *TEMPLATES)):
        return _TOKENIZER
    return next((why for pattern, why in _RULES if pattern.fullmatch(name)), _UNKNOWN)


def of_checkpoint(pin: Path, published: Collection[str]) -> dict[str, str]:
    """Name → reason for all that lies at a checkpoint's top, pinned or not, and is not among the names `published`."""
    return _explain([*_top(pin), *_listed(pin)], published)


def of_base(base: Path, published: Collection[str]) -> dict[str, str]:
    """Return the same of a base model's folder."""
    return _explain(_top(base), published)


def _top(folder: Path) -> list[str]:
    return [path.name + "/" * path.is_dir() for path in folder.iterdir() if path.name not in _OF_PIN]


def _listed(pin: Path) -> list[str]:
    if not (pin / PIN_LIST).is_file():
        return []
    return [str(name) for name in read_json(pin / PIN_LIST, "read what of the checkpoint was not pinned")]


def _explain(names: Iterable[str], published: Collection[str]) -> dict[str, str]:
    left = sorted(name for name in set(names) if name.rstrip("/") not in published)
    reasons = {name: reason(name) for name in left[:MOST]}
    return reasons | ({"…": f"and {len(left) - MOST} more"} if len(left) > MOST else {})
