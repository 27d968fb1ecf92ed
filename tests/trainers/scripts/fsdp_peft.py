"""Trainer with FSDP and PEFT."""

from tests.trainers.scripts.ranks import train

if __name__ == "__main__":
    train(peft=True)
