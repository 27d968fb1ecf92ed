"""The whole matrix of PEFT through `ckptd export`: each artifact passed its checks, and has the weights of stock PEFT's own merge."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import models
from tests.matrix.design import DTYPES, FORMS, Case, design, of_family
from tests.matrix.families import FAMILIES, example
from tests.matrix.methods import METHODS, RARE

ROOT = Path(__file__).parents[2]
REFUSED = {
    "TRAINABLE_TOKENS": "PEFT leaves out its bias",  # on a head with a bias
    "tokens": "PEFT leaves out its bias",
}
"""Method → a part of the sentence with which ckptd refuses what stock PEFT merges into another model than the live one."""
IN_16_BITS = dict.fromkeys((("llama", "DELORA"), ("mixtral", "FROD"), ("t5", "RANDLORA")), "the largest logit error")
"""Family and method → the same, where the merge in 16 bits loses more on the prompts than the check allows."""
PARTIAL = 3
"""Exit code of an export with an artifact that was not verified."""
ENDS = ("embedding", "tokens", "TRAINABLE_TOKENS", "saved head")
"""Methods that may change an embedding or a head that share a weight."""
OWN_TOKENIZERS = ("qwen2",)
"""Families whose class of tokenizer in transformers 5 splits texts by its own rule, whatever tokenizer.json says."""
SETTINGS = {
    "CKPTD_EXPORT__VARIANTS": "pytorch", "CKPTD_VALIDATE__SAMPLES": "2", "CKPTD_VALIDATE__NEW_TOKENS": "4",
    "CKPTD_VALIDATE__SPEED_TOKENS": "0", "CKPTD_VALIDATE__PUBLISH_UNVERIFIED": '["pytorch"]', "CKPTD_LIMITS__DISK_RESERVE": "0",
    "OMP_NUM_THREADS": "1",
}  # fmt: skip


def run(module: str, *arguments: str, **more: str) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env={**os.environ, **more}, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def exported(cases: list[Case], folder: Path) -> dict[Case, Path]:
    """Make the cases of one family with stock PEFT, and export all that it could adapt; case → its folder."""
    lines = [[place, case.method, case.dtype, case.form, case.tied] for place, case in enumerate(cases)]
    run("tests.matrix.stock", str(folder), cases[0].family, json.dumps(lines), HF_HUB_OFFLINE="1")
    made, orders = {}, []
    for place, case in enumerate(cases):
        checkpoint = folder / str(place) / "checkpoint-4"
        if error_of(folder / str(place)).get("stage") == "adapt":
            continue
        if FAMILIES[case.family].inputs != "pixels":
            models.make_tokenizer().save_pretrained(checkpoint)
            if case.family in OWN_TOKENIZERS:
                _as_loaded(checkpoint)
        (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
        made[case] = folder / str(place)
        orders.append([str(checkpoint), str(folder / str(place) / "out"), str(folder / str(place) / "answer.json")])
    (folder / "orders.json").write_text(json.dumps(orders))
    run("tests.matrix.exports", str(folder / "orders.json"), XDG_STATE_HOME=str(folder / "state"), **SETTINGS)
    return made


def _as_loaded(checkpoint: Path) -> None:
    """Give a checkpoint the tokenizer that AutoTokenizer makes of its own beside the base's configuration."""
    from transformers import AutoTokenizer

    base = json.loads((checkpoint / "adapter_config.json").read_text())["base_model_name_or_path"]
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(checkpoint, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("adapter*"))
        shutil.copy(Path(base, "config.json"), folder)
        AutoTokenizer.from_pretrained(folder).save_pretrained(checkpoint)


def error_of(place: Path) -> dict[str, str]:
    """What stock PEFT said of a case; empty where it merged it."""
    path = place / "error.json"
    return json.loads(path.read_text()) if path.exists() else {}


def wrong(case: Case, place: Path) -> str:
    """What is wrong with the export of a case; empty where nothing is."""
    answer = json.loads((place / "answer.json").read_text())
    said = " ".join(answer["text"].split())
    error = error_of(place)
    verdict = FAMILIES[case.family].verdict
    if error or answer["code"] != (0 if verdict == "passed" else PARTIAL):
        usual = IN_16_BITS.get((case.family, case.method)) if case.dtype != "float32" else None
        expected = REFUSED.get(case.method) or usual
        refused = answer["code"] == 1 or (answer["code"] == PARTIAL and "it could not be checked" in said)  # no live model to ask
        refused = refused and "Fix: " in said and "Traceback" not in said
        if error:
            return "" if refused else f"stock PEFT says {error['error']}, and the export: {answer['code']} {said[-600:]}"
        return "" if expected and expected in said else f"exit code {answer['code']}: {said[-900:]}"
    (report,) = (json.loads(path.read_bytes()) for path in place.glob("out/*/step-4/report.json"))
    verdicts = [(artifact["variant"], artifact["verdict"]) for artifact in report["artifacts"]]
    if verdicts != [("pytorch", verdict)]:
        return f"{verdicts}: {report['artifacts'][0].get('reasons')}"
    (published,) = place.glob("out/*/step-4/pytorch")
    return "; ".join(differences(case, published, place))


def differences(case: Case, published: Path, place: Path) -> list[str]:
    """What of the published model is neither what PEFT made in the base's dtype nor its fp32 sum rounded once, as sentences."""
    import transformers

    cls = getattr(transformers, FAMILIES[case.family].auto)
    model, loading = cls.from_pretrained(published, dtype=getattr(torch, case.dtype), output_loading_info=True)
    lacking = {key: sorted(loading[key]) for key in ("missing_keys", "unexpected_keys") if loading[key]}
    stock, exact, answers = (load_file(place / f"{name}.safetensors") for name in ("merged", "exact", "live"))
    mine = model.state_dict()
    found = [f"loading the published model: {lacking}"] if lacking else []
    found += [f"{name} is in one of the two alone" for name in mine.keys() ^ stock.keys()]
    # PEFT's merge leaves weights tied that the adapter changed apart; what is right then is what the live model computes.
    apart = set(itertools.chain(*json.loads((place / "tied.json").read_text()))) if case.method in ENDS else set()
    for name in (mine.keys() & stock.keys()) - apart:
        if not torch.equal(mine[name], stock[name]) and not rounded(mine[name], exact[name]):
            found.append(f"{name} is neither PEFT's nor base + delta, rounded once")
    with torch.no_grad():
        logits = model.float().eval()(**example(FAMILIES[case.family])).logits
    unit = answers["live"].std()
    own = max((answers[name] - answers["live"]).abs().max() / unit for name in ("merged", "exact"))  # how far PEFT's merges are
    if (far := (logits - answers["live"]).abs().max() / unit) > max(1.5 * own, 1e-4 if case.dtype == "float32" else 0.5):
        found.append(f"an output is {far:.3g} standard deviations from the live model's")
    if (moved := (answers["plain"] - answers["live"]).abs().max() / unit) < 0.01:
        found.append(f"the adapter changes outputs by {moved:.3g} standard deviations, which proves nothing")
    return found


def rounded(mine: torch.Tensor, exact: torch.Tensor) -> bool:
    if not mine.is_floating_point():
        return torch.equal(mine, exact)
    unit = torch.finfo(mine.dtype).eps / 2 * 1.001
    return bool(((mine.float() - exact).abs() <= unit * exact.abs() + 1e-6 * exact.abs().max() + 1e-30).all())


def test_the_design_has_every_family_with_every_method_in_fp32_and_all_other_pairs() -> None:
    chosen = design()
    for family, method in itertools.product(FAMILIES, METHODS):
        met = [case for case in chosen if (case.family, case.method) == (family, method)]
        assert any(case.dtype == "float32" for case in met) or method in RARE
    for first, second in (("family", FAMILIES), ("method", METHODS)):
        for name in second:
            mine = [case for case in chosen if getattr(case, first) == name]
            assert {case.dtype for case in mine} == set(DTYPES)
            assert {case.form for case in mine} >= set(FORMS[:4])
    assert {(case.dtype, case.form) for case in chosen} == set(itertools.product(DTYPES, FORMS))
    assert len(set(chosen)) == len(chosen)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_on_a_family_is_exported_as_stock_peft_merges_it(family: str, tmp_path: Path) -> None:
    places = exported(of_family(family), tmp_path)
    assert {str(case): told for case, place in places.items() if (told := wrong(case, place))} == {}
    shutil.rmtree(tmp_path)
