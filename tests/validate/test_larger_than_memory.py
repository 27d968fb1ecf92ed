"""A model that is larger than the memory of a control group is run in it for real, and the whole model is killed there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import large

LIMIT = 1_100_000_000
SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
from handlers.child.process import peak_rss
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.protocol import Ahead, Greedy, Teacher
from tests.validate.bench import Direct

engine, folder, out = sys.argv[1:]
worker = Direct(engine, EngineSpec(engine=engine, folder=folder))
worker.load()
prompts = [list(range(5, 45)), list(range(100, 112)), [7] * 30]
requests = [Greedy(ids=ids, tokens=3, verify=True) for ids in prompts]
requests += [Teacher(ids=ids, keep=[0, len(ids) - 1], out=out) for ids in prompts]
going = worker.ask(Ahead(requests=[one.line for one in requests]))
while going.more:
    going = worker.ask(Ahead())
found = []
for request in requests:
    answer = worker.ask(request)
    found.append(answer.model_dump() if isinstance(request, Greedy) else np.load(out).std().item())
print(json.dumps({"peak": peak_rss(), "passes": going.passes, "found": found}))
"""
WHOLE = """
import sys
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.protocol import Teacher
from tests.validate.bench import Direct

worker = Direct("torch", EngineSpec(engine="torch", folder=sys.argv[2]))
worker.load()
worker.ask(Teacher(ids=[5, 6, 7], keep=[0], out=sys.argv[3]))
"""
SIZES = {"HIDDEN": 1024, "INNER": 3072, "HEADS": 16, "KEY_VALUE": 4, "HEAD": 64, "VOCABULARY": 32_000, "SHARD": 200_000_000}


def run(group: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"), sys.executable, "-c", script, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=500)


@pytest.mark.slow
def test_a_model_larger_than_the_memory_is_run_within_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SIZES.items():
        monkeypatch.setattr(large, name, value)
    stored = large.make_base(tmp_path / "base", 0.9)
    assert 2 * stored > LIMIT, "in fp32 it does not fit"
    with large.group(LIMIT) as group:
        if group is None:
            pytest.skip("needs a control group with a memory controller that this user may write to")
        done = run(group, SCRIPT, "torch-layerwise", str(tmp_path / "base"), str(tmp_path / "rows.npy"))
        assert done.returncode == 0, done.stderr[-2000:]
        assert large.counted(group)["group_oom_kills"] == 0
        told = json.loads(done.stdout.splitlines()[-1])
        assert told["peak"] < LIMIT and told["passes"] <= 6
        assert all(one["tokens"] and one["cache_error"] < 1e-3 for one in told["found"][:3]) and all(one > 0.1 for one in told["found"][3:])
        whole = run(group, WHOLE, "torch", str(tmp_path / "base"), str(tmp_path / "rows.npy"))
        assert whole.returncode == -9 and large.counted(group)["group_oom_kills"] > 0, "the limit is a real one"
