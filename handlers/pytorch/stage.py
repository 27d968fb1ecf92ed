"""The stage `pytorch`: the merged model as a standard transformers folder, with all that its users' loaders read beside the weights.

Run by `handlers.__main__` after the merge. Weights are placed, not copied, where the file system allows it; torch is not imported. Of a
sentence-transformers model it is a folder of that library. What is carried along, whence, and what is left out is among the figures.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.disk.placing import place
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.models import left_out, sentence
from handlers.models.code import copy_code
from handlers.models.files import Edits, copy_tokenizer
from handlers.models.folder import ModelFolder, copy_config
from handlers.models.releases.older_readers import make_readable


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Assemble the folder and check its structure; Permanent when a file is missing or does not fit the others."""
    merged, staging = ModelFolder(Path(context.inputs["merge"])), Path(context.staging)
    reporter.progress(0.1, "placing weights")
    for name in merged.weight_names:
        place(merged.path / name, staging / name)
    reporter.progress(0.6, "copying tokenizer and chat template")
    output = surround(context, merged)
    reporter.progress(0.8, "checking the structure")
    output.figures = {"weight_bytes": _check(ModelFolder(staging)), **output.figures}
    return output


def surround(context: StageContext, merged: ModelFolder, edits: Edits | None = None) -> StageOutput:
    """Put all that the users' loaders read into the staging folder, beside the weights that are there; what was put there is the output's.

    `edits` changes keys of config.json. Permanent when a file is missing.
    """
    pin, staging = Path(context.pin), Path(context.staging)
    base = Path(context.base) if context.base else None
    copy_config(merged, staging, edits)
    sentence.place(merged.path, staging)
    copied = copy_tokenizer(pin, base, staging)
    readers = make_readable(staging)
    output = StageOutput(
        figures={
            "tokenizer_from": copied.source, "chat_template": copied.chat_template,
            "transformers": readers.minimum, "transformers_why": readers.why,
        }
    )  # fmt: skip
    for source in (base, pin) if base else (pin,):
        output.warnings += copy_code(source, staging, trusted=context.work.merge.trust_remote_code)
    if copied.source is None:
        output.warnings.append("neither the checkpoint nor its base has a tokenizer, so the folder has none")
    published = {path.name for path in staging.iterdir()}
    output.figures["carried"] = copied.taken
    output.figures["left_out"] = {"checkpoint": left_out.of_checkpoint(pin, published)}
    if base is not None:
        output.figures["left_out"]["base"] = left_out.of_base(base, published)
    return output


def _check(exported: ModelFolder) -> int:
    """Bytes of all tensors, after index, headers and configuration were found to agree."""
    embedding = exported.headers.get("model.embed_tokens.weight")
    rows = exported.config.get("vocab_size")
    if embedding and rows and embedding.shape[0] < rows:
        raise Permanent(
            FaultCode.CONFIG_MISMATCH,
            "check the exported folder",
            f"the embeddings have {embedding.shape[0]:,} rows, config.json says vocab_size {rows:,}",
            "check that the base's config.json belongs to its weights",
            path=exported.path,
        )
    return exported.stored_bytes
