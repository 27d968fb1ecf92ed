"""sentence-transformers: the modules that make one vector for a text out of a model's vectors for its tokens.

A folder of that library has, beside a transformers model, `modules.json` and a folder for each module that follows the model. The merge
takes them along with the weights, so that every stage after it finds them there. Read as data: neither torch nor the library is imported.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.contract.values import Json
from handlers.models.files import read_json

MODULES = "modules.json"
SETTINGS = ("config_sentence_transformers.json", "sentence_*_config.json", "router_config.json")
"""What lies beside `modules.json`: prompts and similarity, lengths and case of texts (one name a kind of model in early releases)."""
KNOWN = frozenset({"Pooling", "Normalize", "Dense", "LayerNorm", "Dropout"})
"""Modules after the model whose arithmetic is known here; Dropout does nothing outside of training."""
POOLING = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""Ways of pooling; where several are set, their vectors are joined in this order."""
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "Sigmoid", "GELU", "SiLU")
"""Classes of torch that a Dense module may name."""
_EARLIER = dict(
    zip(
        (
            "pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_tokens", "pooling_mode_mean_sqrt_len_tokens",
            "pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken",
        ),
        POOLING, strict=True,
    )
)  # fmt: skip
"""Keys of releases before 5.4, one a way of pooling."""
_OPERATION = "read the modules of sentence-transformers"
_FOLDER = re.compile(r"[0-9]{1,2}_\w+")
_FILE = re.compile(r"[\w-][\w.-]*\.(json|txt|model|safetensors)|pytorch_model\.bin")
_LIBRARY = "sentence_transformers."


@dataclass(frozen=True)
class Module:
    """One module after the model."""

    kind: str
    """Its class, without the package."""
    folder: str
    """Its folder below the model's."""
    known: bool


@dataclass(frozen=True)
class Chain:
    """What `modules.json` says."""

    modules: tuple[Module, ...]
    """In their order, without the model itself."""
    odd: str | None = None
    """Why what it computes is not known here, as a clause; None where it is."""

    @property
    def makes_vectors(self) -> bool:
        """Whether they make one vector a text in a way that is known here. A cross-encoder has none after the model."""
        return bool(self.modules) and self.odd is None


def read(folder: Path) -> Chain | None:
    """Return the modules of a folder; None where it has no modules.json. Permanent where that is no JSON."""
    if not (folder / MODULES).is_file():
        return None
    rows = read_json(folder / MODULES, _OPERATION)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return Chain((), f"{MODULES} is not a list of modules")
    first, *rest = (_module(row) for row in rows)
    if first.kind != "Transformer" or not first.known or first.folder:
        where = first.folder or "the folder itself"
        return Chain(tuple(rest), f"{MODULES} begins with {first.kind} in {where}, not with the model in the same folder")
    odd = [f"{module.kind} ({module.folder or 'without a folder'})" for module in rest if not module.known or module.kind not in KNOWN]
    odd += [f"{module.folder}, which is not a module's folder" for module in rest if module.folder and not _FOLDER.fullmatch(module.folder)]
    odd = odd or [why for module in rest if (why := _odd_setting(module.kind, setting(folder, module)))]
    if not odd and rest and [module.kind for module in rest].count("Pooling") != 1:
        odd = ["not exactly one Pooling"]
    return Chain(tuple(rest), f"{MODULES} names {', '.join(odd)}" if odd else None)


def _odd_setting(kind: str, config: Json) -> str | None:
    """Return what a known module computes in a way that is not known here."""
    if any(config.get(key) not in (None, "sentence_embedding") for key in ("module_input_name", "module_output_name")):
        return f"{kind} with {config.get('module_input_name')} and {config.get('module_output_name')} instead of sentence_embedding"
    if kind == "Pooling" and (unknown := set(pooling_modes(config)) - set(POOLING)):
        return f"Pooling by {', '.join(sorted(unknown))}"
    if kind == "Dense" and (activation(config) not in ACTIVATIONS or config.get("use_residual")):
        return f"Dense with {config.get('activation_function')}{' and a residual' if config.get('use_residual') else ''}"
    return None


def pooling_modes(config: Json) -> tuple[str, ...]:
    """Return the ways of pooling that a Pooling module's configuration sets, as the library reads it."""
    named = config.get("pooling_mode")
    if isinstance(named, str):
        return (named,)
    if isinstance(named, list) and named:
        return tuple(str(mode) for mode in named)
    return tuple(mode for key, mode in _EARLIER.items() if config.get(key)) or ("mean",)


def activation(config: Json) -> str:
    """Return the class of torch that a Dense module's configuration names; "" for one of another package."""
    named = str(config.get("activation_function") or "torch.nn.Tanh")
    return named.rpartition(".")[2] if named.startswith("torch.nn.") else ""


def _module(row: dict[str, Any]) -> Module:
    kind = str(row.get("type"))
    package, _, name = kind.rpartition(".")
    known = f"{package}.".startswith(_LIBRARY)
    return Module(name if known else kind, str(row.get("path") or ""), known)


def setting(folder: Path, module: Module) -> Json:
    """Return a module's config.json; {} where it has none."""
    path = folder / module.folder / "config.json"
    config = read_json(path, _OPERATION) if path.is_file() else {}
    return config if isinstance(config, dict) else {}


def place(source: Path, target: Path) -> list[str]:
    """Copy modules.json of `source`, what lies beside it for the library, and the modules' folders; gives warnings.

    Folders are those that `modules.json` names and that lie directly in `source`; of them configuration, vocabulary and weights.
    """
    chain = read(source)
    if chain is None:
        return []
    for path in (source / MODULES, *sorted(path for pattern in SETTINGS for path in source.glob(pattern))):
        shutil.copyfile(path, target / path.name)
    warnings = []
    for module in chain.modules:
        if module.folder and not _FOLDER.fullmatch(module.folder):
            continue  # said below
        (target / module.folder).mkdir(exist_ok=True)
        inside = sorted((source / module.folder).iterdir()) if (source / module.folder).is_dir() else []
        for path in inside:
            if path.is_file() and _FILE.fullmatch(path.name):
                shutil.copyfile(path, target / module.folder / path.name)
            else:
                warnings.append(
                    f"{module.folder}/{path.name} was left out: it is not a configuration, vocabulary or weights file of a module"
                )
    if chain.odd:
        warnings.append(
            f"{chain.odd}: ckptd does not know this. It was copied as far as it is in subfolders of the model's folder, and"
            " its effect on the"
            " model's vectors was not checked: test the folder with SentenceTransformer before you use it"
        )
    return warnings
