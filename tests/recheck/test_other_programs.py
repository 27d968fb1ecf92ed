"""What llama.cpp and optimum themselves make of a checkpoint, checked by the answers of an export of it; slow, since they are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recheck.conftest import Verify, published
from tests.toolchains.real import folder_of, output_of, state_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

QUANTIZE = """
import ctypes, sys, llama_cpp
source, *targets = sys.argv[1:]
for kind, target in zip((llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0), targets):
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = kind
    assert llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(options)) == 0
"""
"""What llama-quantize does."""
EXPORT = """
import sys
from optimum.exporters.onnx import main_export
main_export(sys.argv[1], output=sys.argv[2], task="text-generation-with-past", do_validation=False)
"""
"""What optimum-cli does."""


def test_what_llama_cpp_quantizes_passes_by_its_own_limits_and_fewer_bits_do_not(
    pico_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, verify: Verify
) -> None:
    state = state_with(tmp_path_factory, "gguf")
    export = published(pico_checkpoint, tmp_path, "gguf-f16", CKPTD_STATE__DIRECTORY=str(state))
    (source,) = (export / "gguf-f16").glob("*.gguf")
    folders = [tmp_path / name for name in ("eight", "four")]
    for folder in folders:
        folder.mkdir()
    output_of(folder_of(state, "gguf"), tmp_path, "-c", QUANTIZE, str(source), *(str(folder / "model.gguf") for folder in folders))
    code, answer, _ = verify(export, "--deep", CKPTD_STATE__DIRECTORY=str(state))
    assert code == 0 and [check["verdict"] for check in answer["checks"]] == ["passed"]
    words = ("--like", export, "--variant", "gguf-q8_0")
    code, answer, _ = verify("--artifact", folders[0], *words, CKPTD_STATE__DIRECTORY=str(state))
    assert code == 0 and answer["checks"][0]["verdict"] == "passed"
    code, answer, _ = verify("--artifact", folders[1], *words, CKPTD_STATE__DIRECTORY=str(state))
    assert code == 1 and any("is above the limit" in reason for reason in answer["checks"][0]["reasons"])
    code, answer, _ = verify(export, "--deep")
    (check,) = answer["checks"]
    assert code == 3 and "the toolchain gguf is not installed" in check["reasons"][0] and "ckptd toolchain install gguf" in check["remedy"]


def test_what_optimum_exports_passes_and_its_own_files_are_notes(
    kept_export: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, verify: Verify
) -> None:
    toolchain = folder_of(state_with(tmp_path_factory, "optimum"), "optimum")
    output_of(toolchain, tmp_path, "-c", EXPORT, str(kept_export / "pytorch"), str(tmp_path / "made"))
    code, answer, _ = verify("--artifact", tmp_path / "made", "--like", kept_export, "--variant", "onnx")
    (check,) = answer["checks"]
    assert code == 0 and check["verdict"] == "passed" and check["figures"]["agreement"] > 0.97
    assert any("special_tokens_map.json" in note for note in check["notes"])
