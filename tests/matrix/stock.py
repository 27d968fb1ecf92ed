"""What stock PEFT and transformers make of the cases of one family, in a process that imports nothing of ckptd.

Run as `python -m tests.matrix.stock FOLDER NAME CASES`: the family's name and a JSON list of `[place, method, dtype, form, tied]`. In
FOLDER it makes `bases/`, and for each case `PLACE/` with `checkpoint-4` (the adapter as PEFT saved it), `merged.safetensors` (the state
dict of `merge_and_unload()`), `exact.safetensors` (the same in fp32), `live.safetensors` (outputs in fp32: `live` and `plain` with the
adapter, not merged, and without; `merged` and `exact` of these two) and `tied.json` (groups of names that share a tensor); or `error.json`
with `stage` ("adapt", "merge") and `error`.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.matrix.families import FAMILIES, Family, example
from tests.matrix.methods import config_of

SHARD = "20KB"


def base(name: str, folder: Path, dtype: str, form: str, tied: bool) -> Path:
    """The folder of a base, made when it is asked for first; norms and biases are random too."""
    place = folder / f"{name}-{dtype}-{form}-{tied}"
    if place.is_dir():
        return place
    torch.manual_seed(11)
    model = FAMILIES[name].make(tied)
    for key, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in key.lower() and "weight" in key else 0.0, 0.1)
        elif not parameter.any():
            torch.nn.init.normal_(parameter, 0.0, 0.2)
    model.to(getattr(torch, dtype)).eval()
    if form in ("nf4", "int8"):
        _packed(name, model, dtype, form, place)
    else:
        model.save_pretrained(place, max_shard_size=SHARD if "sharded" in form else "5GB")
    if "bin" in form:
        _pickle(place)
    return place


def _packed(name: str, model: Any, dtype: str, form: str, place: Path) -> None:
    model.save_pretrained(plain := place.with_suffix(".plain"))
    settings: Any = transformers.BitsAndBytesConfig(
        load_in_8bit=form == "int8", load_in_4bit=form == "nf4", bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=getattr(torch, dtype)
    )
    cls = getattr(transformers, FAMILIES[name].auto)
    cls.from_pretrained(plain, quantization_config=settings, dtype=getattr(torch, dtype), device_map="cpu").save_pretrained(place)


def _pickle(place: Path) -> None:
    """The weight files as `torch.save` writes them, in place of safetensors."""
    for path in place.glob("*.safetensors"):
        torch.save(load_file(path), path.with_name(_pickled(path.name)))
        path.unlink()
    index = place / "model.safetensors.index.json"
    if index.is_file():
        table = json.loads(index.read_text())
        table["weight_map"] = {key: _pickled(file) for key, file in table["weight_map"].items()}
        (place / "pytorch_model.bin.index.json").write_text(json.dumps(table))
        index.unlink()


def _pickled(name: str) -> str:
    return name.replace("model", "pytorch_model").replace(".safetensors", ".bin")


def load(family: Family, folder: Path, dtype: str, *, packed: bool = False) -> Any:
    """The base as transformers loads it; one that is stored packed is unpacked by transformers and bitsandbytes, unless `packed`."""
    model = getattr(transformers, family.auto).from_pretrained(folder, dtype=getattr(torch, dtype))
    if getattr(model, "is_quantized", False) and not packed:
        model = model.dequantize().to(getattr(torch, dtype))
    return model.eval()


def adapt(family: Family, method: str, folder: Path, output: Path) -> None:
    """Save an adapter over the base in `folder`, of which every trained value was moved."""
    torch.manual_seed(3)
    model = peft.get_peft_model(load(family, folder, "float32", packed=True), config_of(method, family))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_floating_point():
            scale = 0.1 if "lora_" in name or parameter.numel() < 8 else 0.1 * (parameter.abs().mean().item() + 0.5)
            parameter.data.add_(scale * torch.randn_like(parameter))
    model.save_pretrained(output)
    if not load_file(output / "adapter_model.safetensors"):
        raise ValueError("PEFT saves no tensor of it")
    settings = json.loads((output / "adapter_config.json").read_text())
    (output / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": str(folder)}))


def _outputs(model: Any, family: Family) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model.float().eval()(**example(family)).logits
    return logits.contiguous()


def _state(model: Any) -> dict[str, torch.Tensor]:
    """The state dict, without the wrappers of saved modules, which the merge of LN_TUNING leaves."""
    table = {key: one.clone().contiguous() for key, one in model.state_dict().items() if ".original_module." not in key}
    return {key.replace(".modules_to_save.default", ""): one for key, one in table.items()}


def merge(family: Family, folder: Path, output: Path, dtype: str) -> None:
    """Write what PEFT makes of base and adapter, in the base's dtype and in fp32."""
    plain = _outputs(load(family, folder, "float32"), family)
    merged, wide = (peft.PeftModel.from_pretrained(load(family, folder, kind), output / "checkpoint-4") for kind in (dtype, "float32"))
    live = _outputs(wide, family)
    shared: dict[int, list[str]] = {}
    for name, parameter in load(family, folder, "float32").named_parameters(remove_duplicate=False):
        shared.setdefault(id(parameter), []).append(name)
    answers = {"live": live, "plain": plain}
    for name, model in (("merged", merged.merge_and_unload()), ("exact", wide.merge_and_unload())):
        save_file(_state(model), output / f"{name}.safetensors")
        answers[name] = _outputs(model, family)
    save_file(answers, output / "live.safetensors")
    (output / "tied.json").write_text(json.dumps([group for group in shared.values() if len(group) > 1]))


def do(name: str, folder: Path, case: list[Any]) -> None:
    """One case."""
    place, method, dtype, form, tied = case
    family, output = FAMILIES[name], folder / str(place)
    output.mkdir()
    stage = "adapt"
    try:
        where = base(name, folder / "bases", dtype, form, tied)
        adapt(family, method, where, output / "checkpoint-4")
        stage = "merge"
        merge(family, where, output, dtype)
    except Exception as error:  # whatever stock PEFT says: the test reads it
        (output / "error.json").write_text(json.dumps({"stage": stage, "error": f"{type(error).__name__}: {error}"}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    for chosen in json.loads(sys.argv[3]):
        do(sys.argv[2], Path(sys.argv[1]), chosen)
    assert not {"daemon", "handlers"} & sys.modules.keys()
