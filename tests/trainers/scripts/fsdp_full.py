"""Trainer with FSDP on all weights."""

from tests.trainers.scripts.ranks import train

if __name__ == "__main__":
    train(peft=False)
