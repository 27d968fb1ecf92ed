"""Saves as lists of operations, which can be stopped anywhere, also in the middle of a file; and pieces by torch's own writers."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

TAKEN, REFUSED = "taken", "refused"


@dataclass(frozen=True)
class Write:
    """A file that is written from its beginning on, or that appears at once (`whole`), as by a rename."""

    path: str
    content: bytes
    whole: bool = False
    breaks: str = ""
    """The checkpoint that was whole before, and is not while this is written."""


@dataclass(frozen=True)
class Remove:
    """A file that is removed."""

    path: str


@dataclass
class Save:
    """A trainer's save. `outcome`: path below the run → what becomes of it when all is written."""

    operations: list[Write | Remove] = field(default_factory=list)
    outcome: dict[str, str] = field(default_factory=dict)
    whole_after: dict[str, int] = field(default_factory=dict)
    """Path → number of operations after which it may be taken, or refused."""
    waits: str = ""
    """What is waited for though its weights are whole, until all is written."""
    listed: tuple[str, ...] = ()
    """What has a line of its own although nothing is made of it."""
    weights: str = ""
    """The first file with weights: from its first byte on something is said."""

    def write(self, path: str, content: bytes | str, *, whole: bool = False, breaks: str = "") -> None:
        """Add a file; the first with weights in it is remembered."""
        data = content.encode() if isinstance(content, str) else content
        if not self.weights and _WEIGHTS.search(path):
            self.weights = path
        self.operations.append(Write(path, data, whole, breaks))

    def folder(self, below: str, tree: dict[str, bytes], *order: str) -> None:
        """Add the files of a tree below `below`: those that `order` names in its order, the others before them."""
        for name in [name for name in tree if name not in order] + [name for name in order if name in tree]:
            self.write(f"{below}/{name}", tree[name], whole=name == ".metadata")

    def ends(self, path: str, outcome: str = TAKEN) -> None:
        """The checkpoint at `path` is whole from here on."""
        self.outcome[path], self.whole_after[path] = outcome, len(self.operations)


_WEIGHTS = re.compile(
    r"\.(?:safetensors|distcp|ocdbt|ckpt)$|/model_world_size|_model_states\.pt$|/model_optim_rng\.pt$|/pytorch_model[^/]*\.bin$"
)
CONFIG = json.dumps({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]})
ADAPTER = json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "base_model_name_or_path": "org/base"})
TOKENIZER = {"tokenizer_config.json": b"{}", "tokenizer.json": b'{"model": {"vocab": {}}}'}
MODEL = {"model.embed_tokens.weight": (8, 4), "model.layers.0.self_attn.q_proj.weight": (4, 4), "model.norm.weight": (4,)}
LORA = {
    "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight": (2, 4),
    "base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight": (4, 2),
}


def arrays(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Arrays without a zero."""
    return {name: np.random.default_rng(1).uniform(1, 2, shape).astype(np.float32) for name, shape in shapes.items()}


def files_in(folder: Path) -> dict[str, bytes]:
    """Relative path → content."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def dcp(folder: Path, shapes: dict[str, tuple[int, ...]], **more: Any) -> dict[str, bytes]:
    """A state that torch.distributed.checkpoint has saved: its pieces, then its description."""
    import torch
    import torch.distributed.checkpoint as checkpoint

    shutil.rmtree(folder, ignore_errors=True)
    state = {name: torch.tensor(array) for name, array in arrays(shapes).items()}
    checkpoint.save({"model": state, **more}, checkpoint_id=folder, no_dist=True)
    return files_in(folder)


def shards(folder: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, bytes]:
    """The same in safetensors, as torch's HuggingFaceStorageWriter leaves it without consolidation."""
    import torch
    import torch.distributed.checkpoint as checkpoint

    shutil.rmtree(folder, ignore_errors=True)
    writer = checkpoint.HuggingFaceStorageWriter(str(folder), save_distributed=True)
    checkpoint.save({name: torch.tensor(array) for name, array in arrays(shapes).items()}, storage_writer=writer, no_dist=True)
    return files_in(folder)


def ranks(folder: Path, shapes: dict[str, tuple[int, ...]], count: int = 2) -> dict[str, bytes]:
    """What the ranks of FSDP 2 save of a model with torch.save, as verl has them do."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for rank in range(count):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
        mesh = init_device_mesh("cpu", (count,), mesh_dim_names=("fsdp",))
        state = {}
        for name, array in arrays(shapes).items():
            whole = torch.tensor(array)
            part = whole.chunk(count)[rank].clone()
            state[name] = DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())
        torch.save(state, folder / f"model_world_size_{count}_rank_{rank}.pt")
        torch.distributed.destroy_process_group()
    return files_in(folder)


def archive(folder: Path, shapes: dict[str, tuple[int, ...]] | None = None, **more: Any) -> bytes:
    """Something of torch.save, or a state of these shapes."""
    import torch

    state = {name: torch.tensor(array) for name, array in arrays(shapes).items()} if shapes else {"state": torch.ones(3)}
    torch.save({**state, **more}, folder / "archive.pt")
    return (folder / "archive.pt").read_bytes()


def module(folder: Path, shapes: dict[str, tuple[int, ...]], rest: Any = None) -> bytes:
    """A `.ckpt` of Lightning's (lightning/pytorch/trainer/connectors/checkpoint_connector.py, `dump_checkpoint`)."""
    import torch

    state = {f"model.{name}": torch.tensor(array) for name, array in arrays(shapes).items()}
    torch.save({"epoch": 1, "global_step": 20, "state_dict": state, "hyper_parameters": {"rest": rest}}, folder / "module.ckpt")
    return (folder / "module.ckpt").read_bytes()


def pretrained(saved: Save, below: str, *, adapter: bool = False) -> None:
    """save_pretrained of transformers or PEFT, and then the tokenizer's."""
    if adapter:
        saved.write(f"{below}/adapter_model.safetensors", save(arrays(LORA)))
        saved.write(f"{below}/adapter_config.json", ADAPTER)
    else:
        saved.write(f"{below}/config.json", CONFIG)
        saved.write(f"{below}/model.safetensors", save(arrays(MODEL)))


def tokenizer(saved: Save, below: str) -> None:
    """A tokenizer's save_pretrained."""
    for name, content in TOKENIZER.items():
        saved.write(f"{below}/{name}", content)


def play(saved: Save, run: Path, count: int, part: float = 0.0, begin: int = 0) -> None:
    """Do the first `count` operations in the new directory `run`, and of the next one, if it writes, the part `part`.

    `begin`: so many of them have been done already.
    """
    for operation, share in itertools.islice(_shares(saved.operations, count, part), begin, None):
        path = run / operation.path
        if isinstance(operation, Remove):
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(operation.content[: int(share * len(operation.content))])


def _shares(operations: list[Write | Remove], count: int, part: float) -> Iterator[tuple[Write | Remove, float]]:
    yield from ((operation, 1.0) for operation in operations[:count])
    if count < len(operations) and part and isinstance(following := operations[count], Write) and not following.whole:
        yield following, part
