"""What the command line shows under a Chinese locale: no English sentence is left, tables keep their columns, JSON stays English."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.cells import cell_len

from daemon.cli.main import main
from daemon.contract.language.catalog import use_language
from daemon.operating.log.wrapping import LEAST_WIDTH, wrap
from tests.cli.test_every_verb import VERBS
from tests.upgrades.frozen import STATES, thaw

_NO_WORDS = re.compile(r"`[^`]*`|'[^']*'|\S*[/_.]\S*|--?[a-z][a-z-]*|<[a-z \[\]]*>|\[[a-z]+\]|ckptd( [a-z-]+)*")
"""Commands, quoted values, paths, keys, options, what typer calls a type."""
_SENTENCE = re.compile(r"[A-Za-z]+(?: [a-z]{2,}){2,}")
NAMES = ("transformers Trainer", "this toy", "JSON notification", "处理器：", "fma avx")
"""What is a name, what a made-up stage of the frozen state says, and what a library does."""
_WORD = re.compile(r"(?<![\w.-])[a-z]{2,}(?![\w-])")
WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    all android avx base bitsandbytes browser cancelled check cluster coreml cpu deliver done dtype edge ended executorch export failed
    fma gguf half handlers id ios json laptop latest libtorch limits litert llama lm log merge merged metrics mlx nncf notification notify
    nowhere nvidia onnx onnxruntime open openvino optimum output page partial path paused peft pending pin profile program python
    pytorch reference report retention root run running safetensors schedule select state static stopped succeeded superseded tensorrt
    toolchains torch torchao torchscript trainer transformers validate waiting waits watch web
    """,
    )
)
"""Names of formats, stages, sections, states, trainings and packages."""
Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a daemon that was killed, with exports that succeeded, failed and wait."""
    home = tmp_path_factory.mktemp("chinese") / "home"
    thaw(STATES / "1.0.0.tar.gz", home)
    return home


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, ...], tuple[int, str]]:
    """What has been asked for already, by words."""
    return {}


@pytest.fixture
def chinese(
    home: Path, answers: dict[tuple[str, ...], tuple[int, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Runs a verb in this process, once for all tests, as under LANG=zh_CN.UTF-8: (exit code, what it printed)."""

    def run(*words: str) -> tuple[int, str]:
        if words in answers:
            return answers[words]
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["ckptd", *words])
        code = main()
        answers[words] = code, "".join(capsys.readouterr())
        return answers[words]

    for name in list(os.environ):
        if name.startswith(("CKPTD_", "EXPORT_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CKPTD_CONFIG", str(home / "config.toml"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "xdg"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(home)
    with use_language("zh_CN"):
        yield run


def english_in(text: str) -> list[str]:
    """The English sentences in a text."""
    whole = re.sub(r"\n {2,}", " ", text)  # lines that go on
    lines = (_NO_WORDS.sub("·", line) for line in whole.splitlines())
    return [match[0] for line in lines for match in _SENTENCE.finditer(line) if not any(name in line for name in NAMES)]


HELP = [(), *((*words, "-h") for words in VERBS), ("queue",), ("toolchain", "-h"), ("config",)]
SHOWN = [
    ("status",), ("status", "--all"), ("list",), ("list", "--state", "failed"), ("list", "--run", "none"), ("show", "done/4"),
    ("show", "failed"), ("explain", "runs"), ("explain", "runs/half/checkpoint-4"), ("explain", "exports/done"), ("quality", "done"),
    ("compare", "done/4", "failed/4"), ("check",), ("check", "--all"), ("formats",), ("formats", "--all"), ("verify",),
    ("verify", "--deep"), ("prune", "--dry-run"), ("config", "show"), ("toolchain", "list"), ("toolchain", "doctor"), ("logs",),
    ("queue", "pause"), ("queue", "resume"), ("queue", "resume", "half"), ("queue", "first", "waits"),
]  # fmt: skip
REFUSED = [
    ("statu",), ("status", "--wrong"), ("show",), ("show", "nothing/1"), ("logs", "-n", "x"), ("list", "--state", "odd"),
    ("list", "--since", "odd"), ("export",), ("export", "nowhere"), ("export", "config.toml"), ("queue", "retry", "done"), ("reload",),
    ("queue", "cancel", "done"), ("verify", "nowhere"), ("verify", "--deep", "--exports"), ("verify", "--variant", "onnx"),
    ("verify", "--artifact", "."), ("verify", "--artifact", "nowhere", "--like", "done/4"), ("--set", "odd", "status"),
    ("convert", "nowhere", "new"), ("config", "show", "odd"), ("toolchain", "check", "odd"), ("compare", "done/4", "odd"), ("fsck", "-h"),
    ("bench", "done/4", "--lengths", "0"), ("status", "--config", "nowhere.toml"),
]  # fmt: skip


@pytest.mark.parametrize("words", [*HELP, *SHOWN, *REFUSED], ids=" ".join)
def test_no_english_sentence_is_left(chinese: Run, words: tuple[str, ...]) -> None:
    _, said = chinese(*words)
    assert english_in(said) == [], said
    assert re.search(r"[\u4e00-\u9fff]", said)


@pytest.mark.parametrize("words", [*(words for words in SHOWN if words[0] != "config"), *REFUSED], ids=" ".join)
def test_no_english_word_is_left_that_is_no_name(chinese: Run, words: tuple[str, ...]) -> None:
    _, said = chinese(*words)
    whole = re.sub(r"\n {2,}", " ", re.sub(r"(?<=/)\n {2,}", "", said))  # lines that go on, and long paths that do
    lines = [_NO_WORDS.sub("·", line) for line in whole.splitlines()]
    shown = [line for line in lines if "this toy" not in line and "处理器：" not in line and "JSON notification" not in line]
    assert {line: left for line in shown if (left := set(_WORD.findall(line)) - WORDS)} == {}


@pytest.mark.parametrize("words", [*HELP, *SHOWN, *REFUSED], ids=" ".join)
def test_marks_and_blanks_are_those_of_chinese(chinese: Run, words: tuple[str, ...]) -> None:
    _, said = chinese(*words)
    wrong = re.compile(
        r"[\u4e00-\u9fff，。：；] （|[\u4e00-\u9fff][,:;]|[\u4e00-\u9fff][A-Za-z0-9]|[A-Za-z0-9][\u4e00-\u9fff]|[，。：；] +[\u4e00-\u9fff]"
    )
    assert [line for line in said.splitlines() if wrong.search(re.sub("无法(?=make|retry)", "", line))] == []


@pytest.mark.parametrize("words", [*HELP, *(words for words in SHOWN if words[0] not in ("verify", "prune", "toolchain"))], ids=" ".join)
def test_lines_fit_the_terminal(chinese: Run, words: tuple[str, ...]) -> None:
    _, said = chinese(*words)
    assert [
        line for line in said.splitlines() if cell_len(line) > 80 and len(line.split()) > 3 and "/" not in line and "`" not in line
    ] == []


@pytest.mark.parametrize("words", [("list",), ("show", "done/4"), ("compare", "done/4", "failed/4"), ("formats",)], ids=" ".join)
def test_columns_of_a_table_begin_at_the_same_cell(chinese: Run, words: tuple[str, ...]) -> None:
    _, said = chinese(*words)
    lines = said.splitlines()
    title = next(line for line in lines if line.startswith(("任务 ", "阶段 ", " ", "变体 ")) and len(line.split()) > 2)
    row = lines[lines.index(title) + 1]
    last = title.split()[-1]
    begins = cell_len(title[: title.rindex(last)])
    assert cell_len(row) <= begins or cell_len(row) == cell_len(title) or _blank_before(row, begins), f"{title}\n{row}"


def _blank_before(row: str, cell: int) -> bool:
    """Whether a column begins at a cell of the row: the cell before is blank."""
    place = next(place for place in range(len(row) + 1) if cell_len(row[:place]) >= cell)
    return cell_len(row[:place]) == cell and row[place - 1] == " "


@pytest.mark.parametrize(
    "words", [("status",), ("list",), ("show", "failed"), ("explain", "runs"), ("quality", "done"), ("compare", "done/4", "failed/4"),
              ("check",), ("formats",), ("verify",), ("prune", "--dry-run"), ("config", "show"), ("toolchain", "list")], ids=" ".join,
)  # fmt: skip
def test_answers_for_programs_are_english(chinese: Run, words: tuple[str, ...]) -> None:
    _, said = chinese(*words, "--json")
    answer = json.dumps(json.loads(said[said.index("{") if said[0] != "[" else 0 :]), ensure_ascii=False)
    assert not re.search(r"[\u3000-\u9fff\uff00-\uffef]", answer)


def test_the_language_is_that_of_the_locale(home: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key not in ("LANGUAGE", "LC_ALL", "LC_MESSAGES")}

    def said(**more: str) -> str:
        command = [sys.executable, "-m", "daemon", "status", "--config", str(home / "config.toml")]
        return subprocess.run(command, env={**environment, **more}, capture_output=True, text=True, encoding="utf-8", check=False).stdout

    assert said(LANG="zh_CN.UTF-8").startswith("没有运行：") and said(LANG="C.UTF-8").startswith("not running:")


def test_chinese_is_broken_between_characters_and_never_before_what_closes() -> None:
    text = "守护进程没有正常退出：被杀掉、崩溃，或者机器停机。要继续，用 `ckptd run --config /etc/ckptd.toml` 启动（见说明）。" * 2
    for width in range(20, LEAST_WIDTH):
        lines = wrap(text, width)
        assert all(cell_len(line) <= width for line in lines)
        assert "".join("".join(lines).split()) == "".join(text.split())
        assert not [line for line in lines if line.lstrip()[:1] in tuple("，。；：、！？）》”")]
        assert not [line for line in lines if line.endswith(("（", "“"))]
