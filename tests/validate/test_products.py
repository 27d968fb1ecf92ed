"""oneDNN takes MKL's place where MKL has no fast code for the processor, and only for products that it computes as MKL does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from daemon.contract import cpu
from handlers.models import products

HAS = torch.backends.mkldnn.is_available() and cpu.here().architecture == "x86_64"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Changes the processor that this box says it has."""
    find = products._onednn

    def be(vendor: str, architecture: str = "x86_64") -> None:
        monkeypatch.setattr(cpu, "here", lambda: SimpleNamespace(architecture=architecture, vendor=vendor))
        find.cache_clear()

    yield be
    find.cache_clear()


@pytest.fixture
def counted(here: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Receives the shape of each weight that oneDNN multiplies."""
    here("AuthenticAMD")
    shapes = list[tuple[int, ...]]()
    product = products._onednn()
    assert product is not None or not HAS

    def count(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        shapes.append(tuple(weight.shape))
        assert product is not None
        return product(rows, weight, bias)

    monkeypatch.setattr(products, "_onednn", lambda: count if product else None)
    return shapes


@pytest.mark.skipif(not HAS, reason="torch has no oneDNN for this processor")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(2, 256), (1, 7, 128), (3, 5, 200), (2, 2, 2, 128), (64, 1000)])
def test_several_rows_are_multiplied_by_onednn_to_the_last_digits(
    shape: tuple[int, ...], bias: bool, counted: list[tuple[int, ...]]
) -> None:
    torch.manual_seed(1)
    layer, rows = torch.nn.Linear(shape[-1], 48, bias=bias), torch.randn(shape)
    with torch.inference_mode():
        wanted = layer(rows)
        with products.faster():
            found = layer(rows)
            strided = layer(rows.transpose(0, -2).contiguous().transpose(0, -2))
    assert counted == [(48, shape[-1])] * 2
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(strided, wanted, rtol=1e-5, atol=1e-5)


def test_whatever_it_is_not_meant_for_is_computed_as_ever(counted: list[tuple[int, ...]]) -> None:
    class Own(torch.Tensor):
        """A weight that is more than its values."""

    torch.manual_seed(1)
    rows, weight = torch.randn(4, 256), torch.randn(48, 256)
    cases: list[tuple[torch.Tensor, torch.Tensor]] = [
        (rows[:1], weight),
        (rows[:, :64], weight[:, :64].contiguous()),
        (rows.double(), weight.double()),
        (rows.bfloat16(), weight.bfloat16()),
        (rows, torch.randn(256, 48).t()),
        (rows, weight.as_subclass(Own)),
        (rows.to("meta"), weight.to("meta")),
    ]
    with torch.inference_mode():
        for one, other in cases:
            wanted = torch.nn.functional.linear(one, other)
            with products.faster():
                found = torch.nn.functional.linear(one, other)
            assert found.device == wanted.device and found.dtype == wanted.dtype
            assert found.device.type == "meta" or torch.equal(found, wanted)
    assert counted == []


@pytest.mark.parametrize(("vendor", "architecture"), [("GenuineIntel", "x86_64"), ("0x41", "aarch64")])
def test_where_the_usual_library_is_fast_nothing_is_changed(vendor: str, architecture: str, here: Any) -> None:
    here(vendor, architecture)
    assert products._onednn() is None


@pytest.mark.skipif(not HAS, reason="torch has no oneDNN for this processor")
@pytest.mark.parametrize("fault", ["gone", "another shape", "wrong"])
def test_a_version_of_torch_that_does_it_otherwise_is_not_asked(fault: str, here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here("AuthenticAMD")
    assert products._onednn() is not None
    products._onednn.cache_clear()

    def other(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *more: Any) -> torch.Tensor:
        if fault == "gone":
            raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")
        found = torch.nn.functional.linear(rows, weight, bias)
        return found.flatten(0, 1) if fault == "another shape" else found + 0.01

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", other)
    assert products._onednn() is None


def test_a_model_is_timed_as_its_users_run_it(counted: list[tuple[int, ...]], tmp_path: Any) -> None:
    from handlers.validate.engines.registry import EngineSpec
    from handlers.validate.workers.protocol import Teacher, Time
    from tests.validate.bench import Direct
    from tests.validate.test_layerwise import BASES

    folder = BASES["llama, wide"](tmp_path / "base")
    direct = Direct("torch", EngineSpec(engine="torch", folder=str(folder)))
    direct.load()
    direct.ask(Time(rows=[[5, 6, 7], [8, 9, 10]], tokens=3))
    assert counted == []
    direct.ask(Teacher(ids=[5, 6, 7], keep=[0], out=str(tmp_path / "rows.npy")))
    assert bool(counted) == HAS


_MANY_LENGTHS = """
from daemon.contract.jobs.messages import ChildLimits
from handlers.child import process
process.set_environment(ChildLimits(), "/tmp")
import torch
from handlers.models import products
torch.set_num_threads(1)
def held():
    return int(open("/proc/self/statm").read().split()[1]) // 256
weights = [torch.randn(shape) for shape in ((256, 256), (256, 512), (512, 256), (320, 256))]
with torch.inference_mode(), products.faster():
    for rows in range(2, 222):
        for weight in weights:
            torch.nn.functional.linear(torch.randn(rows, weight.shape[1]), weight)
        before = held() if rows == 2 else before
    print(held() - before)
"""


def test_texts_of_many_lengths_leave_little_behind() -> None:
    done = subprocess.run([sys.executable, "-c", _MANY_LENGTHS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 150, "MiB; each kernel that is kept takes half a one"
