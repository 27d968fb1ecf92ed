"""Times graphs of one integer product: `python benchmarks/_products.py FOLDER ROUNDS`, JSON on standard output.

Run by `processors.py` under `tests.portability.masking`, so that the kernels are those of another processor. For each `NAME.onnx` and each
`NAME.K.npz` with inputs and the right `answer`: {"NAME.K": [milliseconds, share of sums that are wrong]}, the times in turns.
"""

import json
import pathlib
import statistics
import sys
import time

import numpy as np
import onnxruntime


def main() -> None:
    folder, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    calls, wrong = {}, {}
    for graph in sorted(folder.glob("*.onnx")):
        session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        for path in sorted(folder.glob(f"{graph.stem}.*.npz")):
            with np.load(path) as arrays:
                feeds = dict(arrays)
            answer = feeds.pop("answer")
            name = path.name.removesuffix(".npz")
            calls[name] = (session, feeds)
            wrong[name] = float((session.run(None, feeds)[0] != answer).mean())
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, (session, feeds) in calls.items():
            started = time.perf_counter()
            session.run(None, feeds)
            times[name].append(1000 * (time.perf_counter() - started))
    print(json.dumps({name: [statistics.median(times[name]), wrong[name]] for name in calls}))


if __name__ == "__main__":
    main()
