"""Compiled programs: any size, other processors, without a compiler where they run, and what there is to say without one here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from daemon.config.settings import Settings
from daemon.operating.diagnosis.doctor import examine, formats_here
from handlers.torch_programs import compiled
from tests.onnx import qwen
from tests.portability import emulation
from tests.pytorch.forms import make
from tests.sampling import some
from tests.stages import refused
from tests.torch_programs.forms import ALONE, MODELS, logits_of
from tests.validate import sabotage

HERE = compiled.MARCH.get(os.uname().machine)


def test_without_a_compiler_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # R10
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    fault = refused(r"there is no C\+\+ compiler here \(\$CXX, g\+\+, clang\+\+\)", make, "pt2-aoti", tmp_path / "model", tmp_path / "work")
    assert "apt-get install g++" in fault.remedy
    row = formats_here(tmp_path).variants["pt2-aoti"]  # and seen before any export
    assert not row.available and row.lacks == ("the program g++ or clang++",)
    settings = Settings.model_validate({"state": {"directory": tmp_path}, "export": {"variants": ["pt2-aoti"]}})
    assert "export.variants: pt2-aoti needs the program g++ or clang++, which is not on PATH; install it, or leave it out" in (
        examine(settings).problems
    )


def test_the_compiler_that_cxx_names_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "my-g++"
    mine.write_text("")
    mine.chmod(0o700)
    monkeypatch.setenv("CXX", str(mine))
    assert compiled.compiler("pt2-aoti") == str(mine)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen.make(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def folder(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here; on Debian and Ubuntu: apt-get install g++")
    work = tmp_path_factory.mktemp("work")
    staged, output = make("pt2-aoti", tiny, work)
    assert 0 <= output.figures["relative_error"] < 1e-4 and not output.fallbacks
    assert output.figures["compiled_for"] == (HERE[0] if HERE else os.uname().machine)
    assert re.fullmatch(r"2\.\d+", output.figures["system_libraries"]["GLIBC"])
    return staged


@pytest.mark.slow
@pytest.mark.parametrize("name", some(("Llama", "Qwen3Moe", "GPT-2", "Bert", "ModernBert", "T5"), of=2))
def test_a_compiled_program_says_what_the_model_says_at_any_size(name: str, tmp_path: Path) -> None:  # R10
    _, output = make("pt2-aoti", MODELS[name](tmp_path / "model"), tmp_path / "a folder's work")
    assert 0 <= output.figures["relative_error"] < 1e-4 and not output.fallbacks


@pytest.mark.slow
def test_its_file_has_no_sources_and_no_folders_of_this_box(folder: Path) -> None:
    with zipfile.ZipFile(folder / "model.pt2") as package:
        assert not [name for name in package.namelist() if name.endswith(".cpp")]
    places = (sys.prefix, str(Path(compiled.__file__).parents[2]), str(folder.parent))
    text = (folder / "model.pt2").read_bytes()
    assert not [place for place in places if place.encode() in text]


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64" or not shutil.which("objdump"), reason="x86-64's instructions are read by objdump")
def test_its_code_has_no_instruction_beyond_avx2(folder: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = instructions(folder / "model.pt2", tmp_path / "portable")
    assert found["ymm"] > 100 and found["zmm"] == found["mask"] == 0
    if "avx512" in Path("/proc/cpuinfo").read_text():  # that the test can tell: compiled for this processor it has some
        monkeypatch.setattr(compiled, "MARCH", {"x86_64": ("native", None)})
        native, _ = make("pt2-aoti", tiny, tmp_path / "work")
        assert instructions(native / "model.pt2", tmp_path / "native")["zmm"] > 0


def instructions(package: Path, folder: Path) -> dict[str, int]:
    """How many instructions of a package use which registers: of 256 bits, of 512 bits, masks (which come with the latter)."""
    with zipfile.ZipFile(package) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        library = Path(archive.extract(name, folder))
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(library)], capture_output=True, text=True, check=True).stdout
    patterns = {"ymm": r"%ymm", "zmm": r"%zmm", "mask": r"%k[0-7]|%[xy]mm(?:1[6-9]|2\d|3[01])"}
    return {kind: sum(1 for _ in re.finditer(pattern, listing)) for kind, pattern in patterns.items()}


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2])
def test_it_runs_without_a_compiler_and_without_torchs_compiler(rows: int, folder: Path, tiny: Path, tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-I", "-c", ALONE, str(folder), str(rows), "torch._inductor"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert np.allclose(json.loads(done.stdout), logits_of(tiny), atol=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x86-64's processors are emulated on x86-64")
@pytest.mark.parametrize("cpu", ["Haswell", "EPYC", "Nehalem"])
def test_other_processors_run_it_or_say_why_not(cpu: str, folder: Path, tiny: Path) -> None:
    try:
        command = emulation.x86(cpu)
    except emulation.Unavailable as error:
        pytest.skip(str(error))
    done = subprocess.run([*command, "-I", "-c", ALONE, str(folder), "1", "torch._inductor"], capture_output=True, text=True, timeout=280)
    if cpu == "Nehalem":
        assert done.returncode == 1 and "compiled for processors with AVX2, which this one does not have" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert np.allclose(json.loads(done.stdout), logits_of(tiny), atol=1e-4)


@pytest.mark.slow
def test_a_package_of_another_kind_of_machine_is_refused_in_words(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import platform

    from handlers.torch_programs.program import Program

    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(RuntimeError, match=r"model\.pt2 is compiled for .*, and this is riscv64"):
        Program(folder / "model.pt2")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("source", some(("stale", "unmerged", "corrupted block"), of=1))
def test_what_was_compiled_of_a_wrong_model_is_caught_and_what_is_sound_passes(source: str, tmp_path: Path) -> None:  # R4.5
    lab = sabotage.make(tmp_path / "lab")
    bench = lab.bench(tmp_path / "scratch")
    verdicts = {}
    for one in ("sound", source):
        made, _ = make("pt2-aoti", lab.made(one, "pytorch"), tmp_path / one)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(lab.base / name, made / name)
        verdicts[one] = str(bench.check("pt2-aoti", made).verdict)
    assert verdicts == {"sound": "passed", source: "failed"}
