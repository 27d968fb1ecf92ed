"""The stages `onnx-activations-fp16` and `-int8`: they apply the stages that derive a form of the plain ONNX folder to a folder with
activations.

Run by `handlers/__main__.py` on the output of onnx-activations. In half precision the activations are fp16 too; with int8 weights they stay
fp32. What is written is checked against its contract, and its activations are compared with those in fp32: the difference is reported as a
figure; validation judges whether the model is still good. Free of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.graphs import graphset
from handlers.graphs.graph_file import MODEL_FILE
from handlers.graphs.sessions import open_session
from handlers.onnx.activations import contract
from handlers.onnx.activations.calls import Call, calls_of, outputs_of, real_rows, step_masks
from handlers.onnx.activations.check import contract_violations
from handlers.onnx.quantize import fp16, int8

Run = Callable[[StageContext, Reporter], StageOutput]

SOURCE = "onnx-activations"
OPERATION = "give another form of the model's activations"


def half(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `onnx-activations-fp16`."""
    return run_on_activations(fp16.run, context, reporter)


def integers(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `onnx-activations-int8`."""
    return run_on_activations(int8.run, context, reporter)


def run_on_activations(stage: Run, context: StageContext, reporter: Reporter) -> StageOutput:
    """Run a deriving stage on the folder of `onnx-activations` instead of that of `onnx`, and renew the contract.

    Adds the figures `activation_errors` (output → root mean square of its error over that of its fp32 value) and `content`. Permanent
    when the result does not keep its contract.
    """
    source, staging = Path(context.inputs[SOURCE]), Path(context.staging)
    output = stage(context.model_copy(update={"inputs": {**context.inputs, "onnx": context.inputs[SOURCE]}}), reporter)
    reporter.progress(0.9, "checking the activations")
    made = graphset.read(staging)
    types = {port.name: port.dtype for port in made.graphs[0].outputs}
    before = contract.read(source)
    outputs = tuple(activation.model_copy(update={"dtype": types[activation.name]}) for activation in before.outputs)
    agreed = contract.contract(staging, made.files, outputs, task=before.task, layers=before.layers)
    agreed.write(staging)
    if broken := contract_violations(staging, context.limits.threads):
        remedy = f"leave {context.stage} out, and keep the attempt's log"
        raise Permanent(FaultCode.ACTIVATIONS_MISMATCH, OPERATION, "; ".join(broken), remedy, path=staging)
    sessions = [open_session(folder / MODEL_FILE, context.limits.threads) for folder in (staging, source)]
    output.figures["activation_errors"] = drift(
        sessions[0], sessions[1], calls_of(staging, made), [activation.name for activation in outputs]
    )
    output.figures["content"] = agreed.content
    return output


def drift(
    session: onnxruntime.InferenceSession, exact: onnxruntime.InferenceSession, made: Sequence[Call], names: Sequence[str]
) -> dict[str, float]:
    """Output → root mean square of its difference from the exact graph's, over the root mean square of that, at real tokens."""
    squares = {name: np.zeros(2) for name in names}
    for call in made:
        steps = zip(outputs_of(session, call, names), outputs_of(exact, call, names), step_masks(call), strict=True)
        for actual, wanted, mask in steps:
            for name in names:
                first, second = (real_rows(name, value[name].astype(np.float64), mask) for value in (actual, wanted))
                squares[name] += np.square(first - second).sum(), np.square(second).sum()
    return {name: float(np.sqrt(error / max(whole, 1e-30))) for name, (error, whole) in squares.items()}
