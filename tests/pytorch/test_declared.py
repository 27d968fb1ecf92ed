"""What the smaller PyTorch forms are in the plan, in the report and in the export's README."""

from __future__ import annotations

import jinja2
import pytest

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from daemon.contract.jobs.plan import effective_variants, plan
from handlers.pytorch.format import FORMAT
from handlers.report.content.not_verified import not_verified
from tests.report import facts

FORMS = [one.name for one in FORMAT.variants if one.form_of]


def test_quantization_adds_fp16_and_takes_the_quantized_forms_away() -> None:
    assert effective_variants(["pytorch"], "") == ("pytorch",)
    assert effective_variants(["pytorch"], "fp16") == ("pytorch", "pytorch-fp16")
    for level in ("int8", "int4"):
        assert effective_variants(["pytorch"], level) == ("pytorch",), "which of several forms is meant is for the user to say"
    assert effective_variants(["pytorch", *FORMS], "none") == ("pytorch", "pytorch-fp16", "pytorch-bf16")


@pytest.mark.parametrize("variant", FORMS)
def test_what_is_not_exact_enough_leads_down_to_the_model_itself(variant: str) -> None:
    known, seen = catalog().variants, [variant]
    while following := known[seen[-1]].fallback:
        assert following not in seen
        seen.append(following)
    assert seen[-1] == "pytorch" and "pytorch-bf16" in seen
    before = ["merge", "calibration"] if variant == "pytorch-w4a16" else ["merge"]
    assert [spec.name for spec in plan([variant], speed=False)] == [*before, variant, "reference", "merged", f"check-{variant}", "report"]


@pytest.mark.parametrize("variant", FORMS)
def test_the_report_says_which_hardware_the_check_did_not_run_on(variant: str) -> None:
    job = facts.job(facts.done(variant, 0, 5, sizes=(1,)))
    (said,) = [gap for gap in not_verified(job, [facts.check(variant)]) if "hardware" in gap.what]
    assert said.what == f"{variant}: other hardware" and "GPU" in said.why
    failed = ArtifactCheck(variant=variant, verdict=Verdict.UNVERIFIED, reasons=("why",))
    assert [gap.what for gap in not_verified(job, [failed])] == [f"{variant}: everything"]


def test_only_language_models_are_said_to_be_for_vllm_and_that_it_was_not_run() -> None:
    for variant in FORMS:
        usage = catalog().variants[variant].usage
        assert usage is not None
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        environment.filters |= {"literal": repr, "md": str}
        environment.globals["install"] = lambda *names: "install " + " ".join(names)
        template = environment.from_string(usage.read_text())
        values = {
            "variant": variant,
            "folder": variant,
            "prompt": "text",
            "auto": "Auto",
            "pairs": False,
            "files": [],
            "figures": {},
            "chat": False,
            "task": "",
            "checked": False,
            "media": None,
            "openers": (),
        }
        for generates in (True, False):
            text = template.render(**values, generates=generates, transformers="", question="")
            served = variant in ("pytorch-w8a8", "pytorch-w4a16")
            assert ("vllm serve" in text) == ("not run here" in text) == (served and generates)
            assert ("compressed-tensors" in text) == served and ("bitsandbytes" in text) == ("bnb" in variant)
            assert 'from_pretrained(folder, dtype="auto"' in text
