"""People who write to a repository while a version is delivered to it."""

from __future__ import annotations

import pytest

from daemon.contract.faults.fault_codes import FaultCode
from tests.deliver.contract.bench import Bench
from tests.deliver.hub.far_end.store import Repo, small
from tests.deliver.proxy import Answer, Fault, Request
from tests.deliver.sites.hub import SITE


def _commits(repo: Repo, **files: bytes) -> None:
    """What a person does on main."""
    there = dict(repo.at("main").files)
    repo.branches["main"] = repo.add(repo.branches["main"], {**there, **{path: small(data) for path, data in files.items()}}, "mine", "").id


def _once(site: SITE, **files: bytes) -> None:
    """A person is a moment faster than the commit that moves main."""

    def before(repo: Repo, branch: str) -> None:
        if branch == "main":
            site.service.before_commit = None
            _commits(repo, **files)

    site.service.before_commit = before


def _main(site: SITE) -> dict[str, bytes]:
    repo = site.service.store.repo("me/run-a")
    return {path: site.service.store.contents(file) for path, file in repo.at("main").files.items()}


def test_what_a_person_commits_meanwhile_stays(bench: Bench, site: SITE) -> None:
    _once(site, **{"notes.txt": b"mine", "README.md": b"---\nlicense: mit\n---\n# My words\n"})
    export = bench.export()
    receipt = bench.deliver(export).receipt
    assert receipt.moved and site.service.before_commit is None
    main = _main(site)
    assert main["notes.txt"] == b"mine" and b"# My words" in main["README.md"] and receipt.version.encode() in main["README.md"]
    history = [row.title for row in site.service.store.repo("me/run-a").history("main")]
    assert history == ["run-a, step 100: onnx, pytorch", "mine", "initial commit"]
    assert bench.deliver(bench.export(200)).receipt.moved and _main(site)["notes.txt"] == b"mine"


def test_a_file_of_a_persons_stops_main_alone(bench: Bench, site: SITE) -> None:
    """One that ckptd did not bring, and one that it brought and somebody changed."""
    _once(site, **{"config.json": b"mine"})
    export = bench.export()
    kept = bench.deliver(export).receipt
    assert not kept.moved and "config.json that ckptd did not bring" in kept.why_not_moved and _main(site)["config.json"] == b"mine"
    assert kept.version in site.visible("run-a")
    assert bench.deliver(export, move="force").receipt.moved and _main(site)["config.json"] != b"mine"
    _commits(site.service.store.repo("me/run-a"), **{"model.safetensors": b"mine too"})
    later = bench.export(200)
    kept = bench.deliver(later).receipt
    assert not kept.moved and "somebody changed model.safetensors" in kept.why_not_moved and _main(site)["model.safetensors"] == b"mine too"
    assert bench.deliver(later, move="force").receipt.moved


def test_who_is_always_faster_delays_main_alone(bench: Bench, site: SITE) -> None:
    count = iter(range(1000))
    site.service.before_commit = lambda repo, branch: _commits(repo, **{"n": b"%d" % next(count)}) if branch == "main" else None
    export = bench.export()
    end = bench.deliver(export).end
    assert end.fault and end.fault.code == FaultCode.DELIVERY_CONFLICT and not end.permanent
    assert len(site.visible("run-a")) == 1, "the version has its name, whatever happens on main"
    bench.assert_whole(export)
    site.service.before_commit = None
    assert bench.deliver(export).receipt.moved


@pytest.mark.parametrize("revisions", ["tag", "branch"])
def test_a_name_that_a_person_took_is_left_alone(bench: Bench, site: SITE, revisions: str) -> None:
    site.more = {"revisions": revisions}
    export = bench.export()
    name = bench.deliver(export, run="run-a").receipt.version
    repo = site.service.store.repo("me/run-a")
    names = repo.tags if revisions == "tag" else repo.branches
    theirs = names[name] = repo.add(None, {"README.md": small(b"mine")}, "mine", "").id
    end = bench.deliver(export).end
    assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_CONFLICT and name in end.fault.sentence()
    assert names[name] == theirs
    assert bench.remove(name).fault is None and names[name] == theirs, "a name that is not ours was taken away"


def test_a_name_that_a_person_takes_in_the_midst_is_left_alone(bench: Bench, site: SITE) -> None:
    export, theirs = bench.export(), []

    def before(request: Request) -> None:
        repo = site.service.store.repo("me/run-a")
        theirs.append(repo.add(None, {"README.md": small(b"mine")}, "mine", "").id)
        repo.tags[next(name for name in repo.branches if name != "main").removeprefix("ckptd-work-")] = theirs[0]

    bench.proxy.plan(Fault(before=before), when=lambda request: "/tag/" in request.path)
    end = bench.deliver(export).end
    assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_CONFLICT
    assert list(site.service.store.repo("me/run-a").tags.values()) == theirs and site.current("run-a") is None


@pytest.mark.parametrize("code", [409, 412])
def test_a_commit_that_is_refused_as_outdated_is_tried_later(bench: Bench, site: SITE, code: int) -> None:
    export = bench.export()
    answer = Answer(code, {}, b'{"error": "A commit has happened since. Please refresh and try again."}')
    bench.proxy.plan(Fault(answer=answer), when=lambda request: "/commit/" in request.path, times=None)
    end = bench.deliver(export).end
    assert end.fault and end.fault.code == FaultCode.DELIVERY_CONFLICT and not end.permanent
    assert not site.visible("run-a") and site.current("run-a") is None
    bench.proxy.clear()
    assert bench.deliver(export).receipt.moved


def test_a_commit_whose_answer_is_lost_is_made_once(bench: Bench, site: SITE) -> None:
    export = bench.export()
    bench.proxy.plan(Fault(cut_response=0), when=lambda request: "/commit/" in request.path, times=2)
    assert bench.deliver(export).receipt.moved
    titles = [row.title for row in site.service.store.repo("me/run-a").history("main")]
    assert titles == ["run-a, step 100: onnx, pytorch", "initial commit"]


def test_what_somebody_puts_on_the_branch_of_work_reaches_nobody(bench: Bench, site: SITE) -> None:
    def before(request: Request) -> None:
        repo = site.service.store.repo("me/run-a")
        work = next(name for name in repo.branches if name.startswith("ckptd-work-"))
        files = {**repo.at(work).files, "evil.txt": small(b"x")}
        repo.branches[work] = repo.add(repo.branches[work], files, "mine", "").id

    bench.proxy.plan(Fault(before=before), when=lambda request: "/commit/ckptd-work-" in request.path)
    export = bench.export()
    receipt = bench.deliver(export).receipt
    bench.assert_whole(export)
    assert dict(site.visible("run-a")[receipt.version]) == dict(site.expected(export)) and "evil.txt" not in _main(site)
