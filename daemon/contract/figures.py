"""The figures that a stage leaves for the stages after it and for the report, typed.

A stage writes them into its result file as `figures`, where they lie as a JSON object with these names. Pure.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class MergeFigures(BaseModel):
    """What the stage `merge` did. Sizes are bytes, times seconds.

    Keys that another version wrote beside these are ignored, and what an older version did not write has a default.
    """

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    base_bytes: int
    """Bytes of the base's tensors (`.bin`: of its files). A full fine-tune is its own base."""
    parameters: int
    """Elements of all tensors of the output."""
    base_dtype: str
    """Dtype of most of the base's bytes, as torch names it."""
    output_dtype: str = ""
    """Dtype of most of the output's bytes, as torch names it; "" where an older version did not write it."""
    base_digest: str | None = None
    """SHA-256 of the base, in hex; null when it was not computed."""
    method: str
    """PEFT's name of the method, or "full" for a full fine-tune."""
    changed_modules: int
    """Tensors that the adapter changed; where PEFT merged, tensors whose bytes differ from the base's."""
    changed_parameters: int
    """Elements of these tensors."""
    rank: int | None = None
    """Largest LoRA rank of a module; null for methods without ranks."""
    ranks: tuple[int, ...] = ()
    """All LoRA ranks that occur, ascending."""
    scale: float | None = None
    """Factor of B·A, where it is the same for all modules."""
    scales: tuple[float, ...] = ()
    """All factors that occur, ascending."""
    merge_seconds: float
    """Wall time of the whole stage, checks included."""
    resumed_files: int = 0
    """Weight files kept, verified, from an interrupted attempt."""
    resumed_bytes: int = 0
    """Bytes of these files."""
    weight_files: int = 0
    """Weight files in the output."""
    recast_tensors: int = 0
    """Tensors written in another dtype than they were stored in; 0 where PEFT merged."""
    task: str | None = None
    """What the merged model is for, as model hubs name it; null for an architecture that is not known."""
