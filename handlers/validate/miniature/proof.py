"""Proves how a live model is read that is too large to be held: its miniature, read layer by layer, answers as stock PEFT's.

Called by the stage `reference` before it runs such a model. A verdict is kept in the cache: it depends on the structure alone, so that the
second checkpoint of a run needs no proof. Imports numpy and nothing heavier.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import numpy as np

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import ChildLimits
from daemon.contract.models.safetensors import read_header
from daemon.contract.values import Json, digest_of
from handlers.child.hints import Hints
from handlers.models.folder import ModelFolder
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.folders.programs import NoAnswer, asked
from handlers.validate.miniature.stock import BARE, LIVE
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import Teacher

MODULE = "handlers.validate.miniature.stock"
SECONDS = 900
MOST = 1e-3
"""Largest |Δ| in standard deviations: both compute in fp32, in orders that may differ."""
FILE = "miniatures.json"
KEPT = 200


def prove(spec: EngineSpec, cache: Path, scratch: Path, limits: ChildLimits) -> list[str]:
    """Give what there is to tell about the proof of `spec`, a live model that is read layer by layer; `scratch` is for the miniature.

    Permanent where the miniature answers otherwise than stock PEFT's.
    """
    known, key = Hints(cache / FILE, KEPT), _structure(spec)
    if known.get(key) is True:
        return []
    out = scratch / "miniature"
    stock = _stock(spec, out, scratch)
    if "unlike" in stock:
        return [f"How the model is read layer by layer was not proved by a miniature of it: {stock['unlike']}."]
    small = spec.model_copy(update={
        "folder": str(out / "adapter-0"), "base": str(out / "base"), "base_values": "original",
        "additions": tuple((str(out / f"adapter-{number}"), factor) for number, (_, factor) in enumerate(spec.additions, 1)),
    })  # fmt: skip
    try:
        with EngineWorker("miniature", small, scratch, limits) as worker:
            worker.load()
            worst = max(_difference(worker, stock["tokens"], out, name) for name in (LIVE, BARE))
    except WorkerFailed as error:
        raise _disproved(spec, error.cause) from error
    if not worst <= MOST:
        raise _disproved(spec, f"it differs by {worst:.3g} standard deviations")
    known.put({key: True})
    return []


def _difference(worker: EngineWorker, tokens: list[int], out: Path, name: str) -> float:
    """Give largest |Δ| of the miniature's logits from those that stock PEFT gave, in standard deviations of these."""
    mine = out / f"layerwise-{name}"
    worker.ask(Teacher(ids=tokens, keep=list(range(len(tokens))), out=str(mine), bare=name == BARE))
    wanted = np.load(out / name)
    return float(np.abs(np.load(mine) - wanted).max() / wanted.std())


def _disproved(spec: EngineSpec, why: str) -> Permanent:
    return Permanent(
        FaultCode.MEMORY_NEVER, "run the model layer by layer",
        "the model is too large to be held in memory, and read layer by layer a miniature of it, with the same structure and adapter,"
        f" does not answer as PEFT does: {why}", "export on a larger machine, or raise limits.memory_fraction", path=spec.folder,
    )  # fmt: skip


def _structure(spec: EngineSpec) -> str:
    """Give a digest of all that the proof depends on."""
    base = ModelFolder(Path(str(spec.base)))
    adapters: list[Json] = []
    for folder, weight in ((spec.folder, spec.weight), *spec.additions):
        path = Path(folder, "adapter_model.safetensors")
        keys = {key: [info.dtype, len(info.shape)] for key, info in read_header(path).items()} if path.is_file() else {}
        adapters.append({"config": json.loads(Path(folder, "adapter_config.json").read_bytes()), "keys": keys, "weight": weight})
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "peft", "ckptd")}
    tensors = sorted(base.headers) if not base.pickled else []
    return digest_of({"base": base.config, "tensors": tensors, "adapters": adapters, "versions": versions})[:32]


def _stock(spec: EngineSpec, out: Path, scratch: Path) -> Json:
    """Give what the process says that makes the miniature and runs it as stock PEFT does."""
    file = scratch / "miniature-spec.json"
    file.write_text(spec.model_dump_json(), encoding="utf-8")
    try:
        return asked(MODULE, [str(file), str(out)], SECONDS, lambda text: dict(json.loads(text.strip().splitlines()[-1])))
    except NoAnswer as why:
        return {"unlike": str(why)}
