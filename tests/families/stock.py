"""What stock transformers and PEFT make of a family, in a process that imports nothing of ckptd: `python -m tests.families.stock FOLDER
FAMILY…`.

In FOLDER/FAMILY it makes `base/`, `run/checkpoint-4` (a LoRA of all linear layers as PEFT saves it; the whole model where the family has no
layer that PEFT adapts) and `live.safetensors`: the outputs in fp32 of the live model and of the base alone; or `error.json`.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from tests.families.table import AUTO, CLASSES, DECODER, MASKED, PAIR, tiny_settings
from tests.models import make_tokenizer

LONGEST = 90
"""Seconds for a family: some are never small."""
MOST = 40_000_000
"""Parameters."""
NOT_ADAPTED = r".*((mixer|mamba|mamba_decoder)\.(out_proj|conv1d)|dt_proj)"
"""Layers of a state-space model that PEFT refuses to adapt, and one whose weight is read past the layer, where an adapter does nothing."""
TASKS = {DECODER: "CAUSAL_LM", PAIR: "SEQ_2_SEQ_LM", CLASSES: "SEQ_CLS"}


def inputs(family: str) -> dict[str, torch.Tensor]:
    """What the models are compared on: two texts, the second with two tokens of padding in front of a decoder's and behind others'."""
    ids = torch.stack([torch.arange(3, 23), torch.arange(140, 180, 2)])
    if family.endswith(PAIR):
        return {"input_ids": ids, "decoder_input_ids": ids[:, :7]}
    return {"input_ids": ids}


def make(family: str) -> Any:
    """A tiny model with random weights, norms and biases too."""
    name, _, kind = family.partition("/")
    config_class = transformers.models.auto.configuration_auto.CONFIG_MAPPING[name]
    config = config_class(**tiny_settings(family, config_class().to_dict()))
    torch.manual_seed(11)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in getattr(transformers, AUTO[kind]).from_config(config).parameters())
    if size > MOST:
        raise ValueError(f"it has {size:,} parameters, which is not tiny")
    model = getattr(transformers, AUTO[kind]).from_config(config)
    for key, parameter in model.named_parameters():
        if parameter.ndim == 1 and not any(part in key for part in ("A_log", "dt_bias", "time_", "mixer.D", "rg_lru", "alpha")):
            torch.nn.init.normal_(parameter, 1.0 if "norm" in key.lower() and "weight" in key else 0.0, 0.1)
    return model.float().eval()


def outputs(model: Any, family: str) -> torch.Tensor:
    """Logits, in fp32."""
    with torch.no_grad():
        logits: torch.Tensor = model.float().eval()(**inputs(family)).logits
    return logits.contiguous()


def adapt(model: Any, family: str, base: Path, checkpoint: Path) -> Any:
    """Save a LoRA over the base, of which every trained value was moved, and return the live model."""
    import peft

    task: Any = TASKS.get(family.partition("/")[2])
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", exclude_modules=NOT_ADAPTED, task_type=task)
    live = peft.get_peft_model(model, config)
    torch.manual_seed(3)
    for key, parameter in live.named_parameters():
        if parameter.requires_grad and "lora_" in key:
            parameter.data = 0.1 * torch.randn_like(parameter)
    live.save_pretrained(str(checkpoint))
    settings = json.loads((checkpoint / "adapter_config.json").read_text())
    (checkpoint / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": str(base)}))
    return live


def do(family: str, place: Path) -> None:
    """One family."""
    kind = family.partition("/")[2]
    base, checkpoint = place / "base", place / "run" / "checkpoint-4"
    model = make(family)
    model.save_pretrained(base)
    tokenizer = make_tokenizer()
    if kind == MASKED:
        tokenizer.mask_token = tokenizer.eos_token  # the example of such a model shows what it puts there
    tokenizer.save_pretrained(base)
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(base)  # as the class that goes with the configuration writes it
    model = getattr(transformers, AUTO[kind]).from_pretrained(base, dtype=torch.float32)
    plain, how = outputs(model, family), "LoRA"
    checkpoint.mkdir(parents=True)
    try:
        live = outputs(adapt(model, family, base, checkpoint), family)
    except Exception as error:
        how = f"whole model, since PEFT says {type(error).__name__}: {' '.join(str(error).split())[:100]}"
        shutil.rmtree(checkpoint)
        shutil.copytree(base, checkpoint)
        live = plain.clone()
    for path in base.glob("*token*"):
        shutil.copy(path, checkpoint)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
    save_file({"live": live, "plain": plain}, place / "live.safetensors")
    (place / "made.json").write_text(json.dumps({"class": type(model).__name__, "how": how}))


def _too_long(*_: object) -> None:
    raise TimeoutError(f"it took more than {LONGEST} seconds")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    signal.signal(signal.SIGALRM, _too_long)
    for chosen in sys.argv[2:]:
        folder = Path(sys.argv[1], chosen)
        folder.mkdir(parents=True, exist_ok=True)
        signal.alarm(LONGEST)
        try:
            do(chosen, folder)
        except Exception as problem:  # whatever transformers says: the test reads it
            (folder / "error.json").write_text(json.dumps(f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"))
        signal.alarm(0)
    assert not {"daemon", "handlers"} & sys.modules.keys()
