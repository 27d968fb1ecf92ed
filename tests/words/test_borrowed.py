"""What others say within our sentences is in Chinese too: each is provoked here, and compared with no list of ours."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from daemon.config import layers, windows
from daemon.config.settings import Settings
from daemon.config.suggestions import problems_of
from daemon.contract.language.catalog import use_language
from daemon.contract.language.recorded import translated_text
from daemon.operating.monitoring.outlook import starving
from daemon.running.attempts.executor import CpuShare
from daemon.system.processes.rivals import OURS, Rival

ENGLISH = re.compile(r"\b(?!limits|priority|idle|normal|python3|stress|root|alice|pid|ckptd)[a-z]{3,}\b", re.IGNORECASE)


def shown(english: str) -> str:
    with use_language("zh_CN"):
        return translated_text(english)


@pytest.mark.parametrize(
    "text", ["[a", "a 1", "a = ", "a = [1", "a = {b = 1", 'a = "x', "[a]\n[a]", "a = 1\na = 2", "[[a]", "a = 1 2", "a.b = 1\na = 2"]
)
def test_what_python_says_of_a_file_that_is_not_toml(text: str) -> None:
    with pytest.raises(tomllib.TOMLDecodeError) as error:
        tomllib.loads(text)
    said = shown(f"it is not TOML: {layers.said_of_syntax(error.value, text)}")
    assert said.startswith("它不是 TOML：") and not ENGLISH.search(said.partition("：")[2].replace("TOML", "")), said


@pytest.mark.parametrize("expression", ["* *", "99 * * * *", "* * * * xyz", "5-1 * * * *", "*/0 * * * *", "* * * * a-b"])
def test_what_the_library_says_of_an_expression(expression: str) -> None:
    problem = windows.problem_of(expression)
    assert problem is not None
    said = re.sub(r"'[^']*'|\"[^\"]*\"|cron", "", shown(problem))
    assert not ENGLISH.search(said), said


def test_what_the_system_says_of_a_file(tmp_path: Path) -> None:
    said = set()
    for act in (lambda: (tmp_path / "absent").open(), tmp_path.read_bytes, lambda: (tmp_path / ("x" * 300)).touch(), tmp_path.mkdir):
        with pytest.raises(OSError, match=r"\[Errno") as error:
            act()
        said |= {shown(str(error.value.strerror)), shown(str(error.value)).replace(str(error.value.filename), "").replace("Errno", "")}
    assert len(said) == 8 and not any(ENGLISH.search(text) for text in said), said


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("priority", ["idle", "normal", ""])
def test_who_has_the_processor(count: int, priority: str) -> None:
    rivals = [Rival(OURS, "", 0, 1, 0.4), Rival("python3", "root", 7, 5, 0.7), Rival("stress", "alice", 9, 1, 0.2)][3 - count :]
    said = shown(starving(CpuShare(0.09, 1.72), priority, rivals))
    assert not ENGLISH.search(said) and said.count("占用 ") == count, said


def test_a_wrong_word_among_many_is_shown_with_those_that_fit() -> None:
    with pytest.raises(ValueError, match="disk_low") as error:
        Settings.model_validate({"notify": {"on": ["finished"]}})
    (problem,) = problems_of(error.value, Settings)  # type: ignore[arg-type]
    said = shown(problem)
    assert said.endswith("（它是 'finished'）") and "、'recovered' 或 'digest'" in said and ", " not in said
