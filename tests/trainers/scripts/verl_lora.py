"""The same as `verl_fsdp`, of a LoRA: base and adapter in pieces, and `lora_train_meta.json` with the adapter's rank and alpha."""

from tests.trainers.scripts.verl_fsdp import train

if __name__ == "__main__":
    train(peft=True)
