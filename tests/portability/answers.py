"""Runs every graph of a folder on its inputs: `python answers.py FOLDER TARGET`, where numpy and onnxruntime are all there is.

For each `NAME.onnx` and each `NAME.K.npz` beside it (inputs by name) the outputs go to `TARGET/NAME.K.npz`. Imports nothing of the
project: it runs on emulated processors too, where only these two libraries are unpacked.
"""

import pathlib
import sys

import numpy as np
import onnxruntime


def main() -> None:
    folder, target = map(pathlib.Path, sys.argv[1:])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    for graph in sorted(folder.glob("*.onnx")):
        session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        for feeds in sorted(folder.glob(f"{graph.stem}.*.npz")):
            with np.load(feeds) as arrays:
                values = session.run(None, dict(arrays))
            np.savez(target / feeds.name, **dict(zip(names, values, strict=True)))


if __name__ == "__main__":
    main()
