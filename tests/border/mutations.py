"""Mutated files of trainers, and what becomes of each at the border: taken, refused in a sentence, or incomplete; never anything else.

`mutated_inputs(seed, count)` is called by tests. Each input is a real checkpoint in which one file was changed: a field
of a JSON file got another kind or an absurd value, or bytes were flipped, cut or put in. It is looked at as the daemon does, put into the
reference that the journal keeps, and where it is taken, planned as the merge's stage does. All by one seed: an input can be made again.
"""

from __future__ import annotations

import copy
import io
import json
import random
import shutil
import struct
import tempfile
import traceback
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from daemon.checkpoints.files import digest_of_fingerprint, fingerprint
from daemon.checkpoints.inspection import inspect, refusal_of
from daemon.checkpoints.selection import best_step, is_final
from daemon.contract.faults.errors import CkptdError, Fault
from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.models.configs import adapter_config
from daemon.contract.values import digest_of

_HUGE = "@@a number of five thousand digits@@"
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 4, 2**31, 2**63, -(2**63), 10**400, 0.0, 0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"),
    float("-inf"), "", "four", "LORA", "lora", "x" * 5000, "\ud800", "a\udfff", "\0", "a\0b", "\x1b[31mred", "\u202egnp", "../../etc", "/",
    "/dev/zero", "(", "[a-", r"\1", r"(?P<a>x)", "*", "?", "q_proj", r".*\.q_proj", [], {}, [[]], [{}], [None], [0], [-1], [True],
    ["q_proj"], ["q_proj", 5], [5], ["\ud800"], ["\0"], [""], ["("], {"": 0}, {"a": None}, {"(": 4}, {"q_proj": 0}, {"q_proj": "4"},
    {"q_proj": [True]}, {"q_proj": -1}, {"\ud800": 1}, {"q_proj": 1e400}, _HUGE,
)  # fmt: skip
_JSON = ("adapter_config.json", "trainer_state.json", "config.json", "tokenizer_config.json", "generation_config.json")


@dataclass
class Counts:
    """What became of the inputs. `findings`: those that met an error that nobody foresaw, each with what makes it again."""

    seed: int
    inputs: int = 0
    taken: int = 0
    refused: int = 0
    incomplete: int = 0
    findings: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, int]:
        """The counts for a benchmark, `tracebacks` among them."""
        found = {key: value for key, value in asdict(self).items() if isinstance(value, int)}
        return {**found, "tracebacks": len(self.findings)}


def deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def mutated_json(rng: random.Random, value: Any) -> bytes:
    """A JSON value in which one place is other than it was."""
    changed = json.loads(json.dumps(value))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        holder = _holder(rng, changed)
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        new = deep(rng.choice((10, 60, 70, 150, 400))) if rng.random() < 0.05 else copy.deepcopy(rng.choice(VALUES))
        action = rng.random()
        if not keys or action < 0.1:
            if isinstance(holder, dict):
                holder[rng.choice(("new", "\ud800", "", "\0", "x" * 3000, "use_qalora", "layer_replication", "rank_pattern"))] = new
            else:
                holder.append(new)
        elif action < 0.2:
            holder.pop(rng.choice(keys))
        else:
            holder[rng.choice(keys)] = new
    text = json.dumps(changed).replace(json.dumps(_HUGE), "9" * 5000)
    if rng.random() < 0.05 and text.startswith("{") and len(text) > 2:
        text = "{" + text[1:-1] + "," + text[1:]  # each key twice
    return text.encode() if rng.random() > 0.1 else mutated_bytes(rng, text.encode())


def _holder(rng: random.Random, value: Any) -> Any:
    """The value itself, or an object or a list in it."""
    while True:
        inner = [one for one in (value.values() if isinstance(value, dict) else value) if isinstance(one, dict | list)]
        if not inner or rng.random() < 0.7:
            return value
        value = rng.choice(inner)


def mutated_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bytes in which some are flipped, cut off, repeated or put in."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        place = rng.randrange(len(content) + 1)
        match rng.randrange(5):
            case 0 if content:
                content[place % len(content)] = rng.randrange(256)
            case 1:
                content[place:place] = rng.choice((b"\xff\xfe", b"\xed\xa0\x80", b"\0", b"\xef\xbb\xbf", b"[" * 2000, b'"', b"}", b"1e999"))
            case 2:
                del content[place:]
            case 3:
                del content[place : place + rng.randrange(1, 40)]
            case _:
                content[place:place] = content[: rng.randrange(1, 60)]
    return bytes(content)


def mutated_header(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file whose header is other than it was."""
    (length,) = struct.unpack("<Q", data[:8])
    text = mutated_json(rng, json.loads(data[8 : 8 + length])) if rng.random() < 0.8 else mutated_bytes(rng, data[8 : 8 + length])
    said = len(text) if rng.random() < 0.9 else rng.choice((0, 1, length, 2**40, 2**64 - 1))
    return struct.pack("<Q", said) + text + data[8 + length :]


def make_sources(folder: Path) -> dict[str, Path]:
    """A real adapter's checkpoint, a full fine-tune in two files, a model in pieces, and the base."""
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file, save_file

    from tests import models
    from tests.merge import helpers

    base = models.make_base(folder / "base")
    adapter = helpers.make_adapter(base, folder / "adapter", rank_pattern={"layers.0.self_attn.q_proj": 2}, alpha_pattern={"q_proj": 8})
    state = {
        "global_step": 4, "epoch": 1.0, "max_steps": 8, "best_metric": 0.5, "best_model_checkpoint": "run/checkpoint-4",
        "best_global_step": 4,
        "log_history": [{"step": 2, "loss": 1.5}, {"step": 4, "loss": 1.25, "epoch": 1.0}, {"step": 4, "eval_loss": 1.5}],
    }  # fmt: skip
    for name in ("tokenizer_config.json", "tokenizer.json", "generation_config.json"):
        shutil.copy(base / name, adapter / name)
    (adapter / "trainer_state.json").write_text(json.dumps(state))
    full = folder / "full"
    shutil.copytree(base, full)
    (full / "trainer_state.json").write_text(json.dumps(state))
    table = load_file(full / "model.safetensors")
    (full / "model.safetensors").unlink()
    names, weight_map = sorted(table), {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: table[name].contiguous() for name in part}, full / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    (full / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    modules = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling")]
    rows = [{"idx": number, "name": str(number), "path": path, "type": kind} for number, (path, kind) in enumerate(modules)]
    (full / "modules.json").write_text(json.dumps(rows))
    (full / "1_Pooling").mkdir()
    (full / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    pieces = folder / "pieces"
    dcp.save({name: torch.zeros(2, 2) for name in ("model.a", "model.b")}, checkpoint_id=str(pieces), no_dist=True)
    shutil.copy(base / "config.json", pieces / "config.json")
    lightning = folder / "lightning"
    lightning.mkdir()
    state = {"state_dict": {"model.a": torch.zeros(2, 2)}, "epoch": 0, "global_step": 4, "pytorch-lightning_version": "2.5.0"}
    torch.save(state, lightning / "epoch=0-step=4.ckpt")
    shutil.copy(base / "config.json", lightning / "config.json")
    return {"base": base, "adapter": adapter, "full": full, "pieces": pieces, "lightning": lightning}


def mutated_archive(rng: random.Random, data: bytes) -> bytes:
    """A file of torch.save whose pickle, or whose own bytes, are other than they were."""
    if rng.random() < 0.2:
        return mutated_bytes(rng, data)
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(written, "w") as after:
        for entry in before.infolist():
            content = before.read(entry)
            after.writestr(entry.filename, mutated_bytes(rng, content) if entry.filename.endswith("data.pkl") else content)
    return written.getvalue()


@dataclass
class _Place:
    """A checkpoint in which files are changed and put back."""

    folder: Path
    files: dict[str, bytes]

    @contextmanager
    def changed(self, name: str, content: bytes) -> Iterator[Path]:
        """The checkpoint with other content in one file."""
        (self.folder / name).write_bytes(content)
        try:
            yield self.folder
        finally:
            (self.folder / name).write_bytes(self.files[name])


def _place(source: Path, folder: Path) -> _Place:
    shutil.copytree(source, folder)
    return _Place(folder, {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})


def look(folder: Path) -> str:
    """What the daemon makes of a checkpoint: "taken", "refused" or "incomplete"; all that it would write down can be written."""
    seen = fingerprint(folder)
    digest_of_fingerprint(seen)
    found = inspect(folder)
    if not found.complete:
        for sentence in found.missing:
            sentence.encode()
        return "incomplete"
    if found.refusal is not None:
        _check_fault(found.refusal)
        assert refusal_of(folder) is not None, "what is refused is listed again after a restart"
        return "refused"
    reference = CheckpointRef(
        root="/r", run="run", step=found.step, path=str(folder), layout=found.layout or "", digest="0" * 64, method=found.method,
        base_name=found.base_name, base_revision=found.base_revision, metadata=found.metadata, ending=found.ending,
    )  # fmt: skip
    said = reference.model_dump_json()
    assert CheckpointRef.model_validate_json(said) == reference
    json.dumps(json.loads(said), allow_nan=False).encode()
    digest_of(reference.model_dump(mode="json"))
    assert abs(found.step) < 1 << 63, "SQLite takes no more"
    best_step(found.metadata)
    is_final(found.step, found.metadata)
    return "taken"


def _check_fault(fault: Fault) -> None:
    """A fault is one bounded sentence that can be written, and shows no character that acts on a terminal."""
    sentence = Fault.model_validate_json(fault.model_dump_json()).sentence()
    assert len(sentence) < 2500 and sentence.isprintable(), sentence[:500]


def plan(folder: Path, base: Path) -> str:
    """What the merge's planning makes of an adapter: "taken", or "refused" for good."""
    from handlers.merge.adapters.adapter import read_adapter
    from handlers.merge.adapters.name_mapping import NeedsPeft
    from handlers.merge.plan.matcher import match
    from handlers.merge.weights.unpacked_base import UnpackedBase
    from handlers.models.files import has_tokenizer
    from handlers.models.folder import ModelFolder

    try:
        adapter = read_adapter(folder)
        model = ModelFolder.opened(base, "base")
        match(adapter, UnpackedBase(model, model.headers))
        has_tokenizer(folder)
        adapter_config(dict(adapter.config), folder / "adapter_config.json")
    except NeedsPeft:
        return "taken"
    except CkptdError as error:
        _check_fault(error.fault)
        assert type(error).__name__ == "Permanent", error
        return "refused"
    return "taken"


def read_model(folder: Path, _: Path) -> str:
    """What the stages make of a full fine-tune's configuration, index and headers."""
    from handlers.merge.plan import output_layout as layout
    from handlers.merge.plan.prepare import match_none
    from handlers.models.folder import ModelFolder
    from handlers.models.tasks import task_of

    try:
        model = ModelFolder.opened(folder, "checkpoint")
        model.check()
        layout.plan(model, match_none(model, "base").outputs)
        task_of(folder)
        _published(model)
        for key in ("vocab_size", "tie_word_embeddings", "quantization_config"):
            model.setting(key)
    except CkptdError as error:
        _check_fault(error.fault)
        assert type(error).__name__ == "Permanent", error
        return "refused"
    return "taken"


def _published(model: Any) -> None:
    """What the stage `pytorch` writes beside the weights."""
    from handlers.models import sentence
    from handlers.models.code import copy_code
    from handlers.models.files import copy_tokenizer
    from handlers.models.folder import copy_config
    from handlers.models.releases.older_readers import make_readable

    with tempfile.TemporaryDirectory(dir=model.path.parent) as target:
        staging = Path(target)
        copy_config(model, staging)
        sentence.place(model.path, staging)
        copy_tokenizer(model.path, None, staging)
        make_readable(staging)
        copy_code(model.path, staging, trusted=False)


def _nothing(folder: Path, base: Path) -> str:
    return "taken"


Mutate = Callable[[random.Random, bytes], bytes]


def _json(rng: random.Random, data: bytes) -> bytes:
    return mutated_json(rng, json.loads(data))


def mutated_inputs(seed: int, count: int, folder: Path | None = None) -> Counts:
    """Try `count` mutated inputs, the same ones for the same seed. `folder`: what `make_sources` made; made here where it is None."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        sources = {one.name: one for one in folder.iterdir()} if folder else make_sources(work / "sources")
        places = {name: _place(sources[name], work / name / "checkpoint-4") for name in ("adapter", "full", "pieces", "lightning")}
        cases: list[tuple[_Place, str, Mutate, Callable[[Path, Path], str]]] = [
            *((places["adapter"], name, _json, plan) for name in ("adapter_config.json",) * 6),
            (places["adapter"], "trainer_state.json", _json, _nothing),
            (places["adapter"], "tokenizer_config.json", _json, plan),
            (places["adapter"], "adapter_model.safetensors", mutated_header, plan),
            (places["full"], "trainer_state.json", _json, _nothing),
            *((places["full"], name, _json, read_model) for name in ("config.json",) * 2),
            (places["full"], "model.safetensors.index.json", _json, read_model),
            *((places["full"], name, _json, read_model) for name in ("generation_config.json", "tokenizer_config.json", "modules.json")),
            (places["full"], "model-00001-of-00002.safetensors", mutated_header, read_model),
            (places["pieces"], ".metadata", mutated_bytes, _nothing),
            (places["lightning"], "epoch=0-step=4.ckpt", mutated_archive, _nothing),
        ]
        counts = Counts(seed)
        for number in range(count):
            rng = random.Random(f"{seed}:{number}")
            place, name, mutate, stage = rng.choice(cases)
            content = mutate(rng, place.files[name])
            counts.inputs += 1
            try:
                with place.changed(name, content) as checkpoint:
                    what = look(checkpoint)
                    if what == "taken":
                        what = stage(checkpoint, sources["base"])
            except Exception:
                counts.findings.append(f"seed {seed}, input {number}, {name}: {traceback.format_exc(limit=-4)!a}")
                continue
            setattr(counts, what, getattr(counts, what) + 1)
        return counts
