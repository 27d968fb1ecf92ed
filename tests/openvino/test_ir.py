"""What OpenVINO's files store is read as its operators mean it; what is not understood is told, and nothing is guessed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from handlers.openvino.twin import stored
from handlers.openvino.twin.ir import Model
from handlers.validate.twins.rounding import misrounded
from handlers.validate.twins.weights import UnreadableError
from tests.openvino.small_ir import Net

DRAWN = np.random.default_rng(0)
SPANS = {"u8": (0, 256), "i8": (-128, 128), "u4": (0, 16), "i4": (-8, 8)}


def drawn(kind: str, *shape: int) -> np.ndarray:
    return DRAWN.integers(*SPANS[kind], shape)


def scales(*shape: int) -> np.ndarray:
    return DRAWN.uniform(0.01, 0.1, shape).astype(np.float16)


@pytest.mark.parametrize("kind", SPANS)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("groups", [False, True])
def test_integers_are_read_less_their_zero_points_times_their_scales(
    kind: str, turned: bool, points: bool, groups: bool, tmp_path: Path
) -> None:  # fmt: skip
    rows, columns, block = 6, 32, 8
    if groups:
        shape = (columns // block, block, rows) if turned else (rows, columns // block, block)
        small = (columns // block, 1, rows) if turned else (rows, columns // block, 1)
    else:
        shape, small = ((columns, rows), (1, rows)) if turned else ((rows, columns), (rows, 1))
    codes, factors, zeros = drawn(kind, *shape), scales(*small), drawn(kind, *small) if points else None
    whole = (codes - (0 if zeros is None else zeros)) * factors.astype(np.float32)
    matrix = whole.reshape(columns, rows).T if turned else whole.reshape(rows, columns)
    net = Net()
    target = ((columns, rows) if turned else (rows, columns)) if groups else ()
    net.product(net.scaled(kind, codes, factors, zeros, target), turned=turned)
    (weight,) = stored.read(net.write(tmp_path))
    assert (weight.name, weight.use, weight.shape, weight.block) == ("w", "product", (rows, columns), block if groups else 0)
    part = weight.part(slice(0, rows))
    np.testing.assert_allclose(part.values, matrix, rtol=1e-6)
    low, high = SPANS[kind]
    inside = (codes > low) & (codes < high - 1)
    np.testing.assert_array_equal(part.inside, inside.reshape(columns, rows).T if turned else inside.reshape(rows, columns))


def test_a_table_that_is_a_head_too_is_read_for_both(tmp_path: Path) -> None:
    net = Net()
    weight = net.scaled("u8", drawn("u8", 8, 16), scales(8, 1), drawn("u8", 8, 1))
    net.table(weight)
    net.product(weight, turned=False)
    assert sorted(one.use for one in stored.read(net.write(tmp_path))) == ["product", "table"]


def test_halves_are_read_as_matrices_and_small_ones_by_their_bytes(tmp_path: Path) -> None:
    net = Net()
    half, norm = DRAWN.normal(size=(4, 6)).astype(np.float16), np.ones(6, np.float16)
    net.product(net.layer("Convert", [net.constant("w", "f16", half)]), turned=True)
    net.layer("Multiply", [net.layer("Parameter", ()), net.layer("Convert", [net.constant("norm", "f16", norm)])])
    path = net.write(tmp_path)
    (weight,) = stored.read(path)
    np.testing.assert_array_equal(weight.part(slice(None)).values, half.T.astype(np.float32))
    assert norm.tobytes() in set(stored.halves(path))


def test_plain_numbers_are_no_stored_weights(tmp_path: Path) -> None:
    net = Net()
    net.product(net.constant("w", "f32", np.ones((32, 32))), turned=False)
    net.layer("Subtract", [net.layer("Parameter", ()), net.layer("Parameter", ())])
    assert stored.read(net.write(tmp_path)) == []


def _no_scale(net: Net) -> None:
    net.product(net.layer("Convert", [net.constant("w", "i8", np.ones((32, 32)))]), turned=False)


def _mystery(net: Net) -> None:
    net.layer("Mystery", [net.scaled("u8", drawn("u8", 32, 32), scales(32, 1))])


def _four_bit_floats(net: Net) -> None:
    net.product(net.layer("Convert", [net.constant("w", "nf4", np.ones((32, 32)))]), turned=False)


def _groups_of_outputs(net: Net) -> None:
    net.product(net.scaled("u8", drawn("u8", 32, 16), scales(1, 16)), turned=False)


def _another_shape(net: Net) -> None:
    net.product(net.scaled("u4", drawn("u4", 4, 8, 16), scales(4, 8, 1), shape=(8, 64)), turned=False)


def _other_zero_points(net: Net) -> None:
    net.product(net.scaled("u8", drawn("u8", 32, 16), scales(32, 1), drawn("u8", 1, 16)), turned=False)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (_no_scale, "the stored numbers of w are read by operators that are not known here"),
        (_mystery, "the stored numbers of w are read by operators that are not known here"),
        (_four_bit_floats, "the constant w is stored as nf4, which is not read here"),
        (_groups_of_outputs, "the weight w is in groups of outputs"),
        (_another_shape, "the weight w is no matrix with a scale for each row or group"),
        (_other_zero_points, "the zero points of w are of another shape than its scales"),
    ],
)
def test_what_is_not_understood_is_told(build: Callable[[Net], None], words: str, tmp_path: Path) -> None:
    net = Net()
    build(net)
    with pytest.raises(UnreadableError, match=words):
        stored.read(net.write(tmp_path))


def test_layers_of_a_body_are_read_as_their_own(tmp_path: Path) -> None:
    body = '<body><layers><layer id="0" name="inner" type="Const"><data element_type="i8" shape="16, 16" offset="0" size="256" /></layer>'
    (tmp_path / "model.xml").write_text(
        f'<net><layers><layer id="0" name="loop" type="Loop">{body}</layers><edges /></body></layer></layers><edges /></net>'
    )
    (tmp_path / "model.bin").write_bytes(bytes(256))
    assert [(own, layer.name) for own, layer in Model(tmp_path / "model.xml").layers.items()] == [("0", "loop"), ("0.body.0", "inner")]
    with pytest.raises(UnreadableError, match="the stored numbers of inner"):
        stored.read(tmp_path / "model.xml")
    (tmp_path / "model.xml").write_text("<net>")
    with pytest.raises(UnreadableError, match=r"model\.xml is no XML"):
        stored.read(tmp_path / "model.xml")


def test_scales_that_became_halves_afterwards_are_no_alarm_and_a_zero_point_that_is_off_is(tmp_path: Path) -> None:
    values = DRAWN.normal(size=(16, 512)).astype(np.float32) + 0.3
    low, high = (edge(values, axis=1, keepdims=True) for edge in (np.min, np.max))
    steps = (high - low) / 255
    zeros = np.rint(-low / steps)
    codes = np.clip(np.rint(values / steps) + zeros, 0, 255)
    for off in (0, 1):
        net = Net()
        net.product(net.scaled("u8", codes, steps.astype(np.float16), zeros + off), turned=False)
        (weight,) = stored.read(net.write(tmp_path))
        found = misrounded(weight, values)
        assert (found is None) == (off == 0) and (found is None or found.rows == 16)
    assert math.isclose(float(weight.part(slice(0, 1)).steps[0, 0]), float(steps[0, 0]), rel_tol=1e-3)
