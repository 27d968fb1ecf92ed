"""A loop of one's own with accelerate, all weights."""

from tests.trainers.scripts.accelerated import train

if __name__ == "__main__":
    train()
