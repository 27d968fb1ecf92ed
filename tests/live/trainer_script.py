"""A user's own training script: `trainer_script.py BASE RUN STEPS SAVE_STEPS PAUSE`. Knows nothing of ckptd."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from transformers import TrainerCallback

from tests import models


class Pause(TrainerCallback):
    """A step takes a while, as it does on a real model."""

    def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
        time.sleep(float(sys.argv[5]))


if __name__ == "__main__":
    base, run, steps, save_steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    models.train_run(base, run, steps=steps, save_steps=save_steps, save_total_limit=1, callbacks=[Pause()])
