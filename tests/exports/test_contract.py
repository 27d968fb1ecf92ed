"""What each format that needs a toolchain keeps: sound exports pass and say how they were made, and what is made of a wrong model fails."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.contract.formats.catalog import catalog
from handlers.web import engine
from tests.exports.formats import FORMATS
from tests.stages import made_in
from tests.toolchains import real
from tests.validate import sabotage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # llama.cpp is compiled where it is not installed


@pytest.mark.parametrize("name", FORMATS)
def test_all_forms_pass_and_say_with_what_they_were_made(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:  # R2.4 R4.1 R10
    expected, variants, folder = FORMATS[name], catalog().variants, real.exported(tmp_path_factory, name)
    report = json.loads((folder / "report.json").read_bytes())
    made = {artifact["variant"]: artifact for artifact in report["artifacts"] if artifact["variant"] in expected.variants}
    assert {variant: artifact["verdict"] for variant, artifact in made.items()} == dict.fromkeys(expected.variants, "passed")
    assert expected.versions <= set(report["versions"])
    readme = (folder / "README.md").read_text()
    assert re.search(rf"pip install {expected.installs}==\d", readme) or not expected.installs
    assert all(words in readme + (folder / "report.html").read_text() for words in expected.says)
    for variant, artifact in made.items():
        larger, limits, figures = variants[variant].fallback, variants[variant].limits, artifact["figures"]
        assert larger is None or artifact["size_bytes"] < made[larger]["size_bytes"], variant
        assert not limits.timed or figures["speed_over_pytorch"] > 0, variant
        assert not limits.twin or figures["twin_error"] < expected.twin, variant


@pytest.fixture(scope="module", params=FORMATS)
def name(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A format, whose libraries can be imported, and whose engines find what they run by."""
    toolchain = real.folder_of(real.state_with(tmp_path_factory, request.param), request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "packages_folder", lambda: toolchain / "node_modules")
        for _ in real.imported(toolchain):
            yield request.param


@pytest.mark.parametrize("source", sabotage.SOURCES)
def test_what_was_made_of_a_wrong_model_is_caught_and_what_is_sound_passes(
    source: str, name: str, lab: sabotage.Lab, tmp_path: Path
) -> None:  # R4.5  # fmt: skip
    expected, bench = FORMATS[name], lab.bench(tmp_path / "scratch")
    folders = made_in(lab, source, expected.tried or expected.variants, tmp_path)
    checks = [bench.check(variant, folder) for variant, folder in folders.items()]
    verdicts, reasons = [str(check.verdict) for check in checks], [check.reasons for check in checks]
    if source == "sound":
        assert verdicts == ["passed"] * len(checks), reasons
    else:
        least = expected.hidden.get(source, expected.caught)
        assert verdicts.count("failed") >= least and set(verdicts[: min(least, 2)]) == {"failed"}, reasons
        assert source in expected.hidden or all(expected.reason in " ".join(said) for said in reasons), reasons
