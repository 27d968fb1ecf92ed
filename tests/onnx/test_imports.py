"""What the stages import costs only what it must, and is the same as without what is spared."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys

import pytest

import handlers.merge
from handlers.child import process


def in_a_new_process(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]


def test_transformers_models_are_listed_once_and_the_list_is_the_same() -> None:
    in_a_new_process(
        "import sys; from pathlib import Path\n"
        "from handlers.models.releases.transformers_once import transformers\n"
        "from transformers.utils import import_utils\n"
        "listed = import_utils.define_import_structure\n"
        "package = sys.modules['transformers.models']\n"
        "assert listed.cache_info().misses == 1, 'only the folder itself has been looked through'\n"
        "wanted = listed.__wrapped__(str(Path(transformers.__file__).parent / 'models' / '__init__.py'))\n"
        "names = {name for modules in wanted.values() for objects in modules.values() for name in objects}\n"
        "assert len(names) > 1000 and names <= set(dir(package))\n"
        "places = package._class_to_module\n"
        "assert all(places[name] == module for modules in wanted.values() for module, objects in modules.items()\n"
        "           for name in objects if sum(name in other for found in wanted.values() for other in found.values()) == 1)\n"
        "assert transformers.Qwen3Config is package.Qwen3Config is package.qwen3.Qwen3Config\n"
    )


def test_a_version_that_lists_its_models_in_another_way_is_left_alone() -> None:
    in_a_new_process(
        "from transformers.utils import import_utils\n"
        "listed = import_utils.define_import_structure.__wrapped__\n"
        "import_utils.define_import_structure = lambda *given, **named: listed(*given, **named)\n"
        "from handlers.models.releases.transformers_once import transformers\n"
        "assert transformers.AutoConfig.for_model('qwen3').model_type == 'qwen3'\n"
    )


def test_onnx_ir_takes_sympy_when_symbolic_sizes_are_added_up_and_gives_the_same() -> None:
    sums = (
        "shape = ir.SymbolicDim('a * 2'); made = [str(shape + 1), str(shape // 3), str(-shape), str((shape * 0).value), shape == 'a * 2']\n"
    )
    in_a_new_process(
        "import sys, handlers.graphs.light_ir\n"
        "import onnx_ir as ir\n"
        "graph = ir.Graph([ir.val('x', ir.DataType.FLOAT, ['n', 3])], [], nodes=[], opset_imports={'': 21}, name='g')\n"
        "written = ir.to_proto(ir.Model(graph, ir_version=10))\n"
        "assert ir.from_proto(written).graph.inputs[0].shape == ('n', 3)\n"
        "assert 'sympy.core' not in sys.modules and not any(type(finder).__name__ == '_Later' for finder in sys.meta_path)\n"
        f"{sums}"
        "assert 'sympy.core' in sys.modules\n"
        f"import subprocess\nprogram = {sums!r}\n"
        "plain = subprocess.run([sys.executable, '-c', f'import onnx_ir as ir\\n{program}print(made)'], capture_output=True, text=True)\n"
        "assert plain.stdout.strip() == str(made), (plain, made)\n"
    )


def test_sympy_that_is_there_is_left_as_it_is() -> None:
    in_a_new_process(
        "import sympy, handlers.graphs.light_ir, sys\n"
        "assert 'onnx_ir' not in sys.modules and type(sys.modules['sympy']).__name__ == 'module'\n"
    )


def test_the_merge_is_imported_when_it_is_asked_for() -> None:
    in_a_new_process(
        "import sys, handlers.tensors.sources\n"
        "assert 'handlers.merge.api' not in sys.modules\n"
        "from handlers.merge import Execution, MergeOptions, MergeReport, merge_adapter, stage\n"
        "from handlers.merge.api import merge_adapter as own\n"
        "assert merge_adapter is own\n"
    )
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = handlers.merge.nothing  # type: ignore[attr-defined]


def test_calls_in_a_loop_map_no_memory_wherever_the_stack_is() -> None:
    def faults(depth: int) -> int:
        """How often a page was touched first, in the worst of places: calls from some depth on, over and over."""
        if depth:
            return faults(depth - 1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(1000):
            deeper(3)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    def deeper(depth: int) -> None:
        if depth:
            deeper(depth - 1)

    places = range(0, 400, 2)
    if max(map(faults, places)) < 1000:
        pytest.skip("this Python keeps its frames in another way")
    assert max(process.with_room(lambda: [faults(depth) for depth in places])) < 500
    assert process.with_room(lambda: "given") == "given"
    with pytest.raises(KeyError):
        process.with_room(lambda: {}["nothing"])


def test_nothing_is_collected_while_a_stage_is_imported() -> None:
    before = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError), process.importing():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() and gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
