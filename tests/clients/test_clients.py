"""Stock clients read what is published by the lines of their own documentation, and write what the live model writes."""

from __future__ import annotations

import ast
import re
import subprocess
from typing import Any

import pytest

from tests.clients.cases import CASES, READINGS, VECTORS, Reading
from tests.clients.conftest import Clients, Made, stock
from tests.clients.trained import certain_start
from tests.families.table import DECODER
from tests.toolchains import real

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400)]
ROUNDING = 1e-3
"""Largest difference of a probability, or of a number of a vector of length 1."""
RUN_BY = {"pytorch": ("ours", "older", "clients"), "openvino": ("clients",), "gguf-f16": ("gguf",)}
"""Variant → the environments in which its README's code is run; the others in ours."""
PAIRS = [(case, reading) for case, entry in CASES.items() for reading in READINGS[entry.kind] if reading.variant in entry.variants]
SNIPPETS = [
    (case, variant, environment)
    for case, entry in CASES.items() for variant in entry.variants if not variant.startswith("web")
    for environment in RUN_BY.get(variant, ("ours",)) if (entry.kind, variant, environment) != (VECTORS, "pytorch", "ours")
]  # fmt: skip


@pytest.mark.parametrize(("case", "reading"), PAIRS, ids=str)
def test_a_client_answers_as_the_live_model(
    case: str, reading: Reading, made: dict[str, Made], answers: dict[tuple[str, Reading], Any]
) -> None:  # fmt: skip
    answer, wanted = answers[case, reading], reading.wanted(made[case].live)
    if isinstance(wanted, dict):
        assert answer["label"] == max(wanted, key=wanted.__getitem__), answer
        assert abs(answer["score"] - wanted[answer["label"]]) < ROUNDING
    elif isinstance(wanted, list):
        assert isinstance(answer, list), answer
        assert max(abs(mine - its) for mine, its in zip(answer, wanted, strict=True)) < ROUNDING
    else:  # a tokenizer that puts a space before a text: clients show it or don't, by what they cut
        assert isinstance(answer, str), answer
        assert answer.removeprefix(" ") == wanted.removeprefix(" ")


@pytest.mark.parametrize(("case", "variant", "environment"), SNIPPETS)
def test_the_code_of_the_readme_runs_as_it_stands(
    case: str, variant: str, environment: str, made: dict[str, Made], clients: Clients
) -> None:
    export = made[case].export
    blocks = [(language, code) for language in ("python", "sh") for code in real.blocks(export, variant, language)]
    assert blocks
    for language, code in blocks:
        python = str(clients.python(environment))
        command = (
            [python, "-B", "-W", "ignore", "-c", code]
            if language == "python"
            else ["sh", "-ec", f'python() {{ "{python}" -B "$@"; }}\n{code}']
        )
        done = subprocess.run(command, cwd=export, env=stock(), capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0 and done.stdout, done.stderr[-3000:]
        if variant in ("openvino", "gguf-f16") and CASES[case].kind == DECODER:
            asked = asked_by(code)
            wanted = _shown(certain_start(made[case].place, **asked))
            assert wanted or asked["chat"]
            assert _shown(done.stdout).startswith(wanted), (done.stdout, wanted)


def asked_by(code: str) -> dict[str, Any]:
    """What the README's code asks: the text, how many tokens, and whether in the form of the chat template."""
    said = re.search(r"(?:generate|model)\((['\"].*?['\"]), max_|\"content\": (['\"].*?['\"])\}", code)
    count = re.search(r"max_(?:new_)?tokens=(\d+)", code)
    assert said and count, code
    chat = "apply_chat_template=True" in code or "create_chat_completion" in code
    return {"text": ast.literal_eval(said[1] or said[2]), "tokens": int(count[1]), "chat": chat}


def _shown(text: str) -> str:
    """Without the space before it and the ends of lines behind it, which clients show or don't."""
    return text.removeprefix(" ").rstrip()
