"""What lies in a repository loads as people load models: by its name, and by a version's; with the logits of the published folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deliver.contract.bench import Bench
from tests.deliver.exports import Export
from tests.deliver.hub.far_end.stock import stock
from tests.deliver.sites.hub import SITE
from tests.models import make_base

LOGITS = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
text = "for name in sorted(names):"
def logits(model, tokenizer):
    with torch.no_grad():
        return model.eval()(**tokenizer(text, return_tensors="pt")).logits
def whole(*where, **how):
    return logits(AutoModelForCausalLM.from_pretrained(*where, dtype=torch.float32, **how), AutoTokenizer.from_pretrained(*where, **how))
"""


def _files(variant: str, folder: Path) -> dict[str, bytes | int]:
    return {f"{variant}/{path.name}": path.read_bytes() for path in folder.iterdir()}


def _adapter(base: Path, folder: Path, seed: int) -> Path:
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    peft.get_peft_model(model, config).save_pretrained(folder)
    return folder


def test_a_model_loads_by_its_name_and_by_a_versions(bench: Bench, site: SITE, tmp_path: Path) -> None:
    exports = [
        bench.export(step, files={"README.md": b"# An export\n", **_files("pytorch", make_base(tmp_path / f"base-{step}", seed=step))})
        for step in (100, 200)
    ]
    versions = [bench.deliver(export).receipt.version for export in exports]
    stock(site.service.url, tmp_path / "home", LOGITS + """
old, new = (whole(folder + "/pytorch") for folder in given["folders"])
assert not torch.equal(old, new)
assert torch.equal(whole("me/run-a"), new)
assert torch.equal(whole("me/run-a", revision=given["versions"][1]), new)
assert torch.equal(whole("me/run-a", revision=given["versions"][0]), old)
assert torch.equal(whole("me/run-a", use_safetensors=True, force_download=True), new)
""", folders=[str(export.folder) for export in exports], versions=versions)  # fmt: skip


@pytest.mark.parametrize("beside", [False, True])
def test_an_adapter_loads_on_its_base(bench: Bench, site: SITE, tmp_path: Path, beside: bool) -> None:
    """Alone it lies at the top; beside a whole model in its folder, where it does not disturb that."""
    base, exports = make_base(tmp_path / "base"), list[Export]()
    for step in (100, 200):
        files = _files("pytorch-adapter", _adapter(base, tmp_path / f"adapter-{step}", step))
        exports.append(bench.export(step, files={**files, **(_files("pytorch", base) if beside else {})}))
    versions = [bench.deliver(export).receipt.version for export in exports]
    stock(site.service.url, tmp_path / "home", LOGITS + """
import peft
how = {"subfolder": "pytorch-adapter"} if given["beside"] else {}
def adapted(where, **how):
    model = AutoModelForCausalLM.from_pretrained(given["base"], dtype=torch.float32)
    return logits(peft.PeftModel.from_pretrained(model, where, **how), AutoTokenizer.from_pretrained(given["base"]))
old, new = (adapted(folder + "/pytorch-adapter") for folder in given["folders"])
assert not torch.equal(old, new) and not torch.equal(old, whole(given["base"]))
assert torch.equal(adapted("me/run-a", **how), new)
assert torch.equal(adapted("me/run-a", revision=given["versions"][0], **how), old)
if given["beside"]:
    assert torch.equal(whole("me/run-a"), whole(given["base"]))
else:
    auto = peft.AutoPeftModelForCausalLM.from_pretrained("me/run-a", dtype=torch.float32)
    assert torch.equal(logits(auto, AutoTokenizer.from_pretrained(given["base"])), new)
""", base=str(base), beside=beside, folders=[str(export.folder) for export in exports], versions=versions)  # fmt: skip
