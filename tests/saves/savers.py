"""Trainers that save asynchronously until somebody kills them: `python -m tests.saves.savers` forks one for each line that it reads.

A line is JSON: `kind`, `run`, `scratch`, `ranks`. The answer is the id of the group of its processes. Every weight of step N is N, so that
a reader can tell whether what lies there is whole. Torch is loaded once; each trainer is a fork with a group of processes of its own.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

SHAPES = {"model.embed_tokens.weight": (512, 512), "model.layers.0.self_attn.q_proj.weight": (512, 512), "model.norm.weight": (512,),
          "lm_head.weight": (512, 512)}  # fmt: skip
"""Three megabytes in float32."""
PAUSE_SECONDS = 0.02
"""A step of training."""
SECONDS = 60.0
"""A trainer that nobody kills ends by itself."""
Saver = Callable[[Path, int], "Future[Any] | None"]


def weights(step: int) -> dict[str, Any]:
    """The model after so many steps, as FSDP's tensors where there are several ranks."""
    state = {name: torch.full(shape, float(step)) for name, shape in SHAPES.items()}
    if dist.get_world_size() == 1:
        return state
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in state.items()}


def torchtitan() -> Saver:
    """torchtitan/components/checkpoint.py, `dcp_save` with AsyncMode.ASYNC: a thread, and a group of gloo's of its own."""
    group = dist.new_group(backend="gloo")

    def save(run: Path, step: int) -> Future[Any]:
        state = {**weights(step), "train_state": {"step": step}}
        future: Any = dcp.async_save(state, checkpoint_id=str(run / "checkpoint" / f"step-{step}"), process_group=group)
        return future  # type: ignore[no-any-return]

    return save


def veomni() -> Saver:
    """veomni/checkpoint/dcp_checkpointer.py, `save` with save_async: first the extra state, then one file for each rank, flushed."""
    group = dist.new_group(backend="gloo")

    def save(run: Path, step: int) -> Future[Any]:
        place = run / "checkpoints" / f"global_step_{step}"
        (place / "extra_state").mkdir(parents=True, exist_ok=True)
        torch.save({"global_step": step}, place / "extra_state" / f"extra_state_rank_{dist.get_rank()}.pt")
        writer = dcp.FileSystemWriter(place, thread_count=16, single_file_per_rank=True, sync_files=False)
        state = {"model": weights(step), "optimizer": {"state": weights(step)}}
        future: Any = dcp.async_save(state, storage_writer=writer, process_group=group)
        return future  # type: ignore[no-any-return]

    return save


def lightning() -> Saver:
    """Lightning's AsyncCheckpointIO (lightning/pytorch/plugins/io/async_plugin.py) with save_top_k = 1.

    A thread runs `_atomic_save` (lightning/fabric/utilities/cloud_io.py), and the earlier file is removed at once.
    """
    pool, earlier = ThreadPoolExecutor(1), list[Path]()

    def write(checkpoint: dict[str, Any], file: Path) -> None:
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        system, path = fsspec.core.url_to_fs(str(file))
        with system.transaction, system.open(path, "wb") as stream:
            stream.write(buffer.getvalue())

    def save(run: Path, step: int) -> Future[Any]:
        folder = run / "lightning_logs" / "version_0" / "checkpoints"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"epoch=0-step={step}.ckpt"
        future = pool.submit(write, {"epoch": 0, "global_step": step, "state_dict": weights(step)}, file)
        for path in earlier:
            path.unlink(missing_ok=True)
        earlier[:] = [file]
        return future

    return save


def accelerate() -> Saver:
    """accelerate's own `save_state`, in a loop of one's own."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1024, 1024, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    prepared, _ = accelerator.prepare(model, optimizer)

    def save(run: Path, step: int) -> None:
        with torch.no_grad():
            accelerator.unwrap_model(prepared).weight.fill_(step)
        accelerator.save_state(str(run / f"step_{step}"))

    return save


KINDS = {"torchtitan": torchtitan, "VeOmni": veomni, "Lightning": lightning, "accelerate": accelerate}


def train(kind: str, run: Path, scratch: Path, rank: int, ranks: int) -> None:
    """Train and save until killed. Each save begins when the one before has ended, as trainers have it."""
    dist.init_process_group("gloo", init_method=f"file://{scratch}/rendezvous", rank=rank, world_size=ranks)
    save, end = KINDS[kind](), time.monotonic() + SECONDS
    for step in itertools.count(10, 10):
        future = save(run, step)
        time.sleep(PAUSE_SECONDS)
        if future is not None:
            future.result()
        if time.monotonic() > end:
            return


def _fork(kind: str, run: str, scratch: str, ranks: int) -> int:
    group = 0
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            os.setpgid(0, group)
            try:
                train(kind, Path(run), Path(scratch), rank, ranks)
            finally:
                os._exit(0)
        group = group or child
        os.setpgid(child, group)
    return group


def main() -> None:
    """Serve until the input ends."""
    import accelerate as loaded  # so that no fork has to load it

    torch.set_num_threads(1)
    print(json.dumps({"ready": loaded.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"group": _fork(**json.loads(line))}), flush=True)
        while True:  # those of before are dead by now
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    break
            except ChildProcessError:
                break


if __name__ == "__main__":
    main()
