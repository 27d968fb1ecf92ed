"""What an export keeps of the live model's answers: exact enough, bounded in size, the same at every run, and safe to read."""

from __future__ import annotations

import json
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.figures import LiveFigures
from handlers.validate import record
from handlers.validate.checks.live.reference import Reference
from handlers.validate.checks.live.samples import Sample
from handlers.validate.kept import archive
from handlers.validate.kept.rows import packed, unpacked
from handlers.validate.kept.selection import select
from handlers.validate.length.text import LongText


def made(folder: Path, samples: int, rows: int, vocabulary: int, long: int = 0) -> Reference:
    """A reference with random outputs in `folder`."""
    random, logits = np.random.default_rng(0), record.logits_folder(folder)
    known = record.files_folder(folder)
    (known / "expected.json").write_text(json.dumps({"present": ["a"]}))

    def stored(name: str, count: int) -> Path:
        np.save(logits / name, random.normal(0, 5, (count, vocabulary)).astype(np.float32))
        return logits / name

    texts = [
        Sample(
            f"text {number}", [1], [1] * rows, [2], "two", list(range(rows)), stored(f"live-{number}.npy", rows), completion=[0, rows - 1],
            base_rows=list(range(0, rows, 3)), base_logits=stored(f"base-{number}.npy", len(range(0, rows, 3))),
        )
        for number in range(samples)
    ]  # fmt: skip
    text = LongText([1] * 4 * long, list(range(long)), [long], [long], None, stored("long.npy", long)) if long else None
    return Reference(texts, 5.0, [1], 0, True, LiveFigures(), None, warnings=["one"], long=text, files=known)


def test_sixteen_bits_hold_a_row_within_half_a_step_and_its_largest_entry_stays_the_only_one() -> None:
    random = np.random.default_rng(1)
    rows = random.normal(0, 8, (50, 3000)).astype(np.float32)
    rows[:, 7] = np.nextafter(rows.max(axis=1), np.float32(np.inf))  # two that are closer than a step
    rows[3] = 2.5
    steps, scale = packed(rows) or pytest.fail("it was refused")
    back = unpacked(steps, scale)
    width = (rows.max(axis=1) - rows.min(axis=1)) / 65535
    # The entry that gave way to the largest is a whole step lower at most, all others half of one, and fp32's own rounding.
    assert (np.abs(back - rows) <= 1.5 * width[:, None] + 1e-5).all()
    assert np.mean(np.abs(back - rows) <= 0.5 * width[:, None] + 1e-5) > 0.999
    assert np.abs(back - rows).max() < 0.002 and (back.argmax(axis=1) == rows.argmax(axis=1)).all() and (back[3] == 2.5).all()
    assert ((back == back.max(axis=1, keepdims=True)).sum(axis=1)[np.arange(50) != 3] == 1).all()


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_is_kept_as_it_is(value: float) -> None:
    assert packed(np.array([[1.0, value]], np.float32)) is None


def test_where_all_fits_all_is_kept_and_reads_back_as_it_was(tmp_path: Path) -> None:
    reference = made(tmp_path, samples=3, rows=12, vocabulary=50, long=20)
    path = archive.write(tmp_path / "answers", reference)
    assert archive.unpack(path, tmp_path / "back") == (36, 36)
    back = record.read_reference(tmp_path / "back")
    assert [(sample.text, sample.keep, sample.base_rows, sample.completion) for sample in back.samples] == [
        (sample.text, sample.keep, sample.base_rows, sample.completion) for sample in reference.samples
    ]
    for mine, theirs in zip(back.samples, reference.samples, strict=True):
        assert np.abs(np.load(mine.logits) - np.load(theirs.logits)).max() < 0.001
    assert back.long is not None and back.long.keep == list(range(20)) and back.warnings == []
    assert back.files is not None and (back.files / "expected.json").read_text() == '{"present": ["a"]}'


def test_a_large_vocabulary_keeps_every_text_with_fewer_positions_and_every_entry_of_these(tmp_path: Path) -> None:
    reference = made(tmp_path, samples=6, rows=40, vocabulary=2000, long=48)
    most = 400_000
    selection = select(reference, most)
    kept = selection.reference
    assert most / 2 < selection.size <= most and len(kept.samples) == 6
    path = archive.write(tmp_path / "answers", reference, most)
    positions, of = archive.unpack(path, tmp_path / "back")
    assert of == 240 and positions == sum(len(sample.keep) for sample in kept.samples) < 120 and path.stat().st_size < 1.1 * most
    back = record.read_reference(tmp_path / "back")
    for number, (sample, whole) in enumerate(zip(back.samples, reference.samples, strict=True)):
        assert sample.keep[0] == 0 and sample.keep[-1] == 39, number
        assert np.abs(np.load(sample.logits) - np.load(whole.logits)[sample.keep]).max() < 0.001
        assert sample.completion == [0, len(sample.keep) - 1]
        places = [sample.keep[row] for row in sample.base_rows]
        assert places and set(places) <= set(whole.base_rows) and sample.base_logits is not None and whole.base_logits is not None
        theirs = np.load(whole.base_logits)[[whole.base_rows.index(place) for place in places]]
        assert np.abs(np.load(sample.base_logits) - theirs).max() < 0.001
    assert back.long is not None and back.long.logits is not None and len(np.load(back.long.logits)) == len(back.long.keep) < 48


def test_where_not_even_a_few_positions_of_each_text_fit_the_first_texts_stay(tmp_path: Path) -> None:
    selection = select(made(tmp_path, samples=20, rows=10, vocabulary=1000), 60_000)
    assert 1 <= len(selection.reference.samples) < 20 and selection.size <= 60_000
    assert selection.reference.samples[0].text == "text 0" and all(len(sample.keep) >= 4 for sample in selection.reference.samples)


def test_the_same_reference_gives_the_same_bytes(tmp_path: Path) -> None:
    reference = made(tmp_path, samples=2, rows=5, vocabulary=30)
    first, second = (archive.write(tmp_path / name, reference).read_bytes() for name in ("a", "b"))
    assert first == second


def changed(path: Path, target: Path, **entries: bytes | None) -> Path:
    """A copy of an archive with some entries changed, added, or (None) left out."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as copy:
        for name in source.namelist():
            if name not in entries:
                copy.writestr(name, source.read(name))
        for name, data in entries.items():
            if data is not None:
                copy.writestr(name, data)
    return target


def npy(shape: str, kind: str = "<f4") -> bytes:
    """The beginning of a file of numpy's, with nothing behind it."""
    said = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(said).to_bytes(2, "little") + said


HOSTILE: dict[str, dict[str, bytes | None]] = {
    "a newer version": {"about.json": b'{"version": 2}'},
    "no version": {"about.json": b"[]"},
    "no record": {"reference.json": None},
    "a record that is none": {"reference.json": b"[1]"},
    "outputs of another form": {"logits/live-0.npy.scale.npy": b"no array"},
    "outputs of a shape that no memory holds": {"logits/x.npy": npy("(1000000, 1000000)")},
    "outputs that are objects": {"logits/x.npy": npy("(1,)", "|O")},
    "more files than there can be": {f"files/{number}": b"" for number in range(10_000)},
    "outputs without their scale": {"logits/live-0.npy.scale.npy": None},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_answers_that_can_not_be_read_are_refused_with_a_sentence(tmp_path: Path, what: str) -> None:
    path = archive.write(tmp_path / "answers", made(tmp_path, samples=1, rows=4, vocabulary=9))
    with pytest.raises(Permanent) as refused:
        archive.unpack(changed(path, tmp_path / "other.zip", **HOSTILE[what]), tmp_path / "back")
        record.read_reference(tmp_path / "back")
    assert refused.value.fault.remedy and "Traceback" not in str(refused.value)


def test_an_entry_that_is_larger_than_it_says_is_not_unpacked_to_its_end(tmp_path: Path) -> None:
    path, real, said = archive.write(tmp_path / "answers", made(tmp_path, samples=1, rows=4, vocabulary=9)), 256 << 20, 1000
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(tmp_path / "other.zip", "w", zipfile.ZIP_DEFLATED) as copy:
        for name in source.namelist():
            copy.writestr(name, source.read(name))
        copy.writestr("files/bomb", bytes(real))
    size, lie = (number.to_bytes(4, "little") for number in (real, said))
    (tmp_path / "other.zip").write_bytes((tmp_path / "other.zip").read_bytes().replace(size, lie))
    tracemalloc.start()
    with pytest.raises(Permanent):
        archive.unpack(tmp_path / "other.zip", tmp_path / "back")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < real / 8


def test_what_is_no_archive_or_leads_out_of_the_folder_or_is_too_large_writes_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive.write(tmp_path / "answers", made(tmp_path, samples=1, rows=4, vocabulary=9))
    outside = changed(path, tmp_path / "other.zip", **{"files/../../out.json": b"x", "/tmp/out.json": b"x", "out.json": b"x"})
    archive.unpack(outside, tmp_path / "a" / "back")
    assert not (tmp_path / "a" / "out.json").exists() and sorted(entry.name for entry in (tmp_path / "a" / "back").iterdir()) == [
        "files", "logits", "reference.json",
    ]  # fmt: skip
    (tmp_path / "no.zip").write_bytes(b"PK no archive")
    monkeypatch.setattr(archive, "LARGEST", 100)
    for wrong in (tmp_path / "no.zip", path):
        with pytest.raises(Permanent):
            archive.unpack(wrong, tmp_path / wrong.name / "back")


def test_that_another_program_made_the_artifact_is_known_to_the_comparison_of_files(tmp_path: Path) -> None:
    path = archive.write(tmp_path / "answers", made(tmp_path, samples=1, rows=4, vocabulary=9))
    archive.unpack(path, tmp_path / "back", foreign=True)
    assert json.loads((tmp_path / "back" / "files" / "expected.json").read_text()) == {"present": ["a"], "foreign": True}
