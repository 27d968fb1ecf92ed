"""Which text is compared on and which calibrates: never the same one, whatever the source, and the same choice wherever it is made."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.contract.jobs.options import ValidateOptions
from handlers.child.bounded import BoundedProcess
from handlers.texts import chat, split
from handlers.texts.built_in import BUILT_IN, FURTHER
from handlers.texts.rendering import CHARACTERS, ModelFiles, Rendering
from handlers.texts.rows import Text, Turn, text_of
from handlers.texts.selection import BUILT_IN_SOURCE, SAMPLED_SOURCE, Texts, choose_calibration, comparison_texts, read, write
from tests import models
from tests.onnx.conftest import make_context

PLAIN = Rendering()


def jsonl(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def both(options: ValidateOptions, count: int = 64, rendering: Rendering = PLAIN) -> tuple[Texts, Texts]:
    return comparison_texts(options, rendering), choose_calibration(options, rendering, count)


def assert_apart(compared: Texts, calibrating: Texts) -> None:
    assert not {split.normal(one) for one in compared.plain} & {split.normal(one) for one in calibrating.plain}


@pytest.mark.parametrize("samples", [1, 6, 12, 256])
def test_of_the_built_in_texts_those_that_are_compared_never_calibrate(samples: int) -> None:
    compared, calibrating = both(ValidateOptions(samples=samples))
    assert compared.plain == list(BUILT_IN[:samples])
    assert calibrating.plain == [*BUILT_IN[samples:], *FURTHER]
    assert_apart(compared, calibrating)
    assert len({split.normal(one) for one in (*BUILT_IN, *FURTHER)}) == len(BUILT_IN) + len(FURTHER)


def test_the_first_lines_of_a_text_file_are_compared_and_the_others_calibrate(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(["one", "two", "three", "TWO ", "four"]))
    compared, calibrating = both(ValidateOptions(prompts=str(path), samples=2), 2)
    assert compared.plain == ["one", "two"]
    assert calibrating.plain == ["three", "four"], "what differs in case and spaces alone is the same text"


def test_a_data_set_is_divided_by_digest_whatever_its_order_and_copies(tmp_path: Path) -> None:
    rows = [{"text": f"text number {number}"} for number in range(100)]
    options = ValidateOptions(data=jsonl(tmp_path / "a.jsonl", rows), samples=10)
    compared, calibrating = both(options)
    assert len(compared.texts) == 10 and dict(calibrating.sources)[f"{tmp_path}/a.jsonl (validate.data)"] > 30
    assert_apart(compared, calibrating)
    random.Random(1).shuffle(rows)
    again = both(ValidateOptions(data=jsonl(tmp_path / "b.jsonl", rows * 3), samples=10))
    assert (again[0].plain, again[1].plain) == (compared.plain, calibrating.plain)
    assert again[0].digest == compared.digest
    more = both(ValidateOptions(data=jsonl(tmp_path / "c.jsonl", [*rows, {"text": "one more"}]), samples=10))
    assert len(set(more[0].plain) & set(compared.plain)) >= 9, "a data set that grows keeps its texts"


def test_rows_with_the_same_prompt_have_the_same_purpose(tmp_path: Path) -> None:
    rows = [{"prompt": f"question {number}", "completion": f" {answer}"} for number in range(60) for answer in range(3)]
    source = Rendering("seq2seq")
    compared, calibrating = both(ValidateOptions(data=jsonl(tmp_path / "a.jsonl", rows), samples=20), 64, source)
    assert_apart(compared, calibrating)
    assert all(one.text.startswith("question") and one.completion for one in compared.texts)


def test_a_small_data_set_is_compared_on_first_and_what_lacks_is_built_in(tmp_path: Path) -> None:
    options = ValidateOptions(data=jsonl(tmp_path / "a.jsonl", [{"text": f"t{number}"} for number in range(4)]), samples=6)
    compared, calibrating = both(options)
    assert len(compared.texts) == 4 and "6 samples" in compared.warnings[-1]
    assert [source for source, _ in calibrating.sources] == [BUILT_IN_SOURCE]


def test_prompts_are_compared_and_the_data_set_calibrates_where_both_are_given(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("text number 1\ntext number 2\n")
    data = jsonl(tmp_path / "a.jsonl", [{"text": f"Text  number {number}"} for number in range(200)])
    compared, calibrating = both(ValidateOptions(prompts=str(prompts), data=data, samples=2), 200)
    assert compared.plain == ["text number 1", "text number 2"]
    assert_apart(compared, calibrating)
    assert calibrating.sources[0][0].endswith("(validate.data)")


def test_the_live_model_is_asked_only_for_what_lacks(tmp_path: Path) -> None:
    asked: list[int] = []

    def ask(count: int) -> list[str]:
        asked.append(count)
        return [BUILT_IN[0].upper(), "sampled one", "sampled two"]

    texts = choose_calibration(ValidateOptions(samples=6), PLAIN, 20, ask)
    assert asked == [20] and texts.plain[:2] == ["sampled one", "sampled two"] and texts.sources[0] == (SAMPLED_SOURCE, 2)
    data = jsonl(tmp_path / "a.jsonl", [{"text": f"t{number}"} for number in range(200)])
    assert len(choose_calibration(ValidateOptions(data=data), PLAIN, 20, ask).texts) == 20 and asked == [20]


def test_what_the_stage_leaves_is_read_again_in_part(tmp_path: Path) -> None:
    texts = choose_calibration(ValidateOptions(), PLAIN, 10, lambda count: ["a b", "c d"])
    write(tmp_path, texts)
    again = read(tmp_path, 3)
    assert again.plain == texts.plain[:3] and again.sources == ((SAMPLED_SOURCE, 2), (BUILT_IN_SOURCE, 1))


WORDS = st.text(st.sampled_from("abAB ßſéﬁ①\n\t"), min_size=1, max_size=6)
ROW = st.one_of(
    WORDS.map(lambda one: {"text": one}),
    st.tuples(WORDS, WORDS).map(lambda pair: {"prompt": pair[0], "completion": pair[1]}),
    st.tuples(WORDS, WORDS).map(
        lambda pair: {"messages": [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]}
    ),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(ROW, min_size=1, max_size=30), lines=st.lists(WORDS, max_size=6), samples=st.integers(1, 12),
    kind=st.sampled_from(["causal", "seq2seq", "encoder"]),
)  # fmt: skip
def test_no_text_is_ever_for_both_purposes(tmp_path: Path, rows: list[Any], lines: list[str], samples: int, kind: Any) -> None:  # R2.6
    if not any(any(str(value).strip() for value in row.values()) for row in rows):
        return
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(lines))
    given = {"prompts": str(prompts)} if any(line.strip() for line in lines) else {}
    options = ValidateOptions(data=jsonl(tmp_path / "a.jsonl", [*rows, {"text": "at least one"}]), samples=samples, **given)
    compared, calibrating = both(options, 64, Rendering(kind))
    assert_apart(compared, calibrating)
    normal = [split.normal(one) for one in calibrating.plain]
    assert len(set(normal)) == len(normal), "no text calibrates twice"


@given(st.text())
def test_the_normal_form_is_its_own_and_knows_neither_case_nor_spaces(text: str) -> None:
    normal = split.normal(text)
    assert split.normal(normal) == normal
    assert split.digest(f"  {text}\n") == split.digest(text)


# --- conversations


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with a tokenizer and the chat template of ChatML; nothing else."""
    found = tmp_path_factory.mktemp("chat")
    tokenizer = models.make_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}\n"
        "{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer.save_pretrained(found)
    (found / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    return found


TURNS = (
    Turn("system", "Be brief."), Turn("user", "Hi"), Turn("assistant", "Hello!"), Turn("user", "2 + 2?"), Turn("assistant", "4"),
)  # fmt: skip


def test_a_conversation_is_written_as_transformers_writes_it_and_the_assistants_parts_are_marked(folder: Path) -> None:  # R2.6
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": turn.role, "content": turn.content} for turn in TURNS]
    text = Rendering.of(ModelFiles.in_folder(folder)).write(text_of({"messages": messages}))
    assert text.text == tokenizer.apply_chat_template(messages, tokenize=False)
    assert text.prompt == tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    assert text.completion == "4"
    assert [text.text[start:end] for start, end in text.spans] == ["Hello!<|im_end|>", "4<|im_end|>"]


def test_template_and_tokenizer_are_the_checkpoints_own_else_the_bases(folder: Path, tmp_path: Path) -> None:
    """A merge writes neither: they are looked for where every export takes them from."""
    pin, base, merged = tmp_path / "pin", tmp_path / "base", tmp_path / "merged"
    for one in (pin, base, merged):
        one.mkdir()
    (merged / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    shutil.copytree(folder, base, dirs_exist_ok=True)
    context = make_context(tmp_path / "job", "reference", {"merge": merged}, merged).model_copy(update={"pin": str(pin), "base": str(base)})
    rendering = Rendering.of(ModelFiles.of_job(context))
    assert rendering.write(Text("", turns=TURNS[1:3])).text.startswith("<|im_start|>user\nHi")
    (pin / "chat_template.jinja").write_text("{% for m in messages %}[{{ m['content'] }}]{% endfor %}")
    assert Rendering.of(ModelFiles.of_job(context)).write(Text("", turns=TURNS[1:3])).text == "[Hi][Hello!]"
    assert ModelFiles.of_job(context).tokenizer == base
    shutil.copytree(folder, pin, dirs_exist_ok=True)
    assert ModelFiles.of_job(context).tokenizer == pin


def test_forms_of_conversations_are_one(folder: Path) -> None:
    rendering = Rendering.of(ModelFiles.in_folder(folder))
    shared = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"}]}
    pair = {"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Hello!"}]}
    alpaca = {"instruction": "Hi", "input": "", "output": "Hello!"}
    written = [rendering.write(text_of(row)) for row in (shared, pair, alpaca)]
    assert written[0] == written[1] == written[2] and written[0].text.startswith("<|im_start|>user\nHi<|im_end|>")


def test_a_template_that_changes_earlier_turns_still_has_its_answers_marked(folder: Path) -> None:
    """As Qwen3's does, which drops what the assistant thought in earlier turns."""
    template = chat.ChatTemplate(
        "{% for m in messages %}<{{ m['role'] }}>{% if loop.last %}!{% endif %}{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}",
        {},
    )
    text = Rendering("causal", template).write(Text("", turns=TURNS))
    assert [text.text[start:end] for start, end in text.spans] == ["Hello!", "4"]


@pytest.fixture(scope="module")
def impatient() -> Iterator[BoundedProcess]:
    """What fills in templates, with a fifth of the usual time."""
    process = BoundedProcess("handlers.texts.template_program", cpu_seconds=1, memory=1 << 30)
    yield process
    process.close()


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('roles must alternate') }}", "{{ messages[0].content.__class__.__mro__ }}", "{{ 1 / 0 }}",
     "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", "{{ 'a' * 10 ** 10 }}",
     "{% macro m() %}{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}{% endmacro %}{{ m() }}",
     pytest.param("{{ [[0] * 10 ** 8] | string }}", marks=pytest.mark.slow), "{% for %}"],
)  # fmt: skip
def test_a_template_that_refuses_or_misbehaves_leaves_its_rows_out_with_the_reason(
    template: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: BoundedProcess
) -> None:
    monkeypatch.setattr(chat, "_PROCESS", impatient)
    made = chat.ChatTemplate(template, {})
    rows = [{"messages": [{"role": "user", "content": "Hi"}]}] * 3 + [{"text": "plain"}] * 3 + [{"text": "other"}]
    compared = comparison_texts(ValidateOptions(data=jsonl(tmp_path / "a.jsonl", rows), samples=3), Rendering("causal", made))
    assert sorted(compared.plain) == ["other", "plain"]
    assert "1 text was left out; the first, because the " in compared.warnings[0]


def test_the_first_token_is_not_written_twice(tmp_path: Path) -> None:
    from tokenizers import processors

    tokenizer = models.make_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.convert_tokens_to_ids("<s>"))]
    )
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    rendering = Rendering.of(ModelFiles.in_folder(tmp_path))
    text = rendering.write(Text("", turns=TURNS[:3]))
    assert text.text == "[Be brief.][Hi][Hello!]" and text.text[slice(*text.spans[0])] == "[Hello!]"
    assert tokenizer(text.text)["input_ids"] == tokenizer.apply_chat_template(
        [{"role": turn.role, "content": turn.content} for turn in TURNS[:3]], return_dict=False
    )


def test_a_model_without_a_template_reads_a_dialogue(tmp_path: Path) -> None:
    text = PLAIN.write(Text("", turns=TURNS[1:]))
    assert text.text == "User: Hi\nAssistant: Hello!\nUser: 2 + 2?\nAssistant: 4"
    assert text.prompt == "User: Hi\nAssistant: Hello!\nUser: 2 + 2?\nAssistant:" and text.completion == "4"
    assert [text.text[start:end] for start, end in text.spans] == [" Hello!", " 4"]
    alpaca = PLAIN.write(text_of({"instruction": "Add.", "output": "2"}))
    assert alpaca.text == "### Instruction:\nAdd.\n\n### Response:\n2"


@given(st.text(min_size=1, max_size=30).filter(str.strip), st.integers(1, 400))
def test_a_long_text_is_cut_and_what_is_marked_lies_inside(word: str, times: int) -> None:
    text = PLAIN.write(text_of({"prompt": (word + " ") * times, "completion": "the end"}))
    assert len(text.text) <= CHARACTERS
    assert all(0 <= start <= end <= len(text.text) for start, end in text.spans)
    assert text.whole or text.completion is None or text.text.startswith(text.prompt or "")
