"""What the real DeepSpeed saved is read as its own zero_to_fp32 reads it, bit for bit.

The library is installed into an environment of its own, by tests/trainers/environments/deepspeed.txt.
"""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from daemon.checkpoints.inspection import inspect
from daemon.contract.sharded.deepspeed import read_tensors
from handlers.consolidate.assemble import write_file
from tests.consolidate.helpers import consolidate, pinned
from tests.environments import of_trainers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
CASES = {
    2: ("full-1", "full-2", "full-3", "frozen-2", "frozen-3", "buffer-3", "lora-2", "lora-3", "lora_alone-3"),
    3: ("full-2", "full-3", "frozen-3", "lora-3"),
}
"""Ranks → what they save."""


@pytest.fixture(scope="module")
def saved(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with `RANKS/KIND-STAGE`, as `deepspeed_rank` writes it. Read only."""
    out = tmp_path_factory.mktemp("deepspeed")
    environments = of_trainers(tmp_path_factory)
    environments.python("deepspeed")
    for ranks, cases in CASES.items():
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        words = ["tests.consolidate.deepspeed_rank", ",".join(cases), pico_base, out / str(ranks)]
        with ThreadPoolExecutor(ranks) as pool:
            done = list(pool.map(lambda rank: environments.run("deepspeed", *words, rank, ranks, port), range(ranks)))  # noqa: B023
        assert [one.returncode for one in done] == [0] * ranks, done[0].stderr[-4000:]
    return out


@pytest.mark.parametrize("case", [f"{ranks}/{case}" for ranks, cases in CASES.items() for case in cases])
def test_the_tensors_are_those_of_deepspeeds_own_script(saved: Path, case: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    found = inspect(saved / case / "run")
    assert (found.layout, found.missing, found.refusal, found.step) == ("deepspeed-sharded", (), None, 2)
    write_file(saved / case / "run", tmp_path / "out.safetensors", read_tensors(saved / case / "run"), lambda count: None)
    ours, right = load_file(tmp_path / "out.safetensors"), load_file(saved / case / "right.safetensors")
    assert ours.keys() == right.keys()
    # The script turns buffers into fp32, which no value needs.
    assert all(torch.equal(ours[name].to(value.dtype), value) for name, value in right.items())
    assert {name for name, value in right.items() if ours[name].dtype != value.dtype} <= {"model.norm.scale"}


@pytest.mark.parametrize("case", ["2/full-3", "3/full-2", "2/lora-3", "2/lora_alone-3", "3/lora-3"])
def test_it_becomes_the_folder_of_a_model_or_an_adapter(saved: Path, pico_base: Path, case: str, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    right = load_file(saved / case / "right.safetensors")
    folder, _ = consolidate(pinned(saved / case / "run", tmp_path / "pin"), pico_base, tmp_path / "work")
    if "lora" not in case:
        loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
        assert all(torch.equal(loaded[name], value) for name, value in right.items())
        return
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(pico_base, dtype=torch.float32), folder)
    held = get_peft_model_state_dict(model)
    assert {name: value for name, value in held.items() if not torch.equal(value, right[name.replace(".weight", ".default.weight")])} == {}
    assert len(held) == sum(".lora_" in name for name in right)
