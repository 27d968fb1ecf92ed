"""What S3 and services like it do besides, over moto's server: clocks, codes behind a 200, lost uploads, headers, ranges."""

from __future__ import annotations

import email.utils
import hashlib
import json
import time
import urllib.parse
import urllib.request
from email.message import Message
from pathlib import Path

import pytest

from daemon.contract.delivering.orders import End
from daemon.contract.faults.fault_codes import FaultCode
from tests.deliver.contract.bench import Bench, Delivery
from tests.deliver.exports import Export
from tests.deliver.proxy import Answer, Fault, Request, writes
from tests.deliver.store.s3_site import PART, S3Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SECRET = "the/secret+of+tests"


def site(bench: Bench) -> S3Site:
    assert isinstance(bench.site, S3Site)
    return bench.site


def error(status: int, code: str, **headers: str) -> Answer:
    return Answer(
        status, {"Content-Type": "application/xml", **headers}, f"<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>".encode()
    )


def one_file(bench: Bench, step: int = 100, parts: int = 4) -> Export:
    return bench.export(step, own=True, files={"pytorch/model.safetensors": parts * PART - 100})


def is_part(request: Request) -> bool:
    return "partNumber=" in request.path


def is_end(request: Request) -> bool:
    return request.method == "POST" and "uploadId=" in request.path


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("fault", [Fault(cut_request=1000), Fault(cut_response=0)], ids=["request", "answer"])
def test_a_part_that_is_cut_is_sent_again_alone_after_a_restart(bench: Bench, number: int, fault: Fault) -> None:
    export, sent = one_file(bench), 0
    started: list[Delivery] = []

    def kill(request: Request) -> None:
        started[0].process.kill()

    bench.proxy.plan(Fault(cut_request=fault.cut_request, cut_response=fault.cut_response, before=kill), when=is_part, first=number)
    started.append(bench.start(export))
    assert started[0].wait().killed
    sent += sum(request.body for request in bench.proxy.seen if is_part(request))
    bench.proxy.clear()
    bench.deliver(export, resume=started[0].notes).receipt  # noqa: B018
    again = [request.path for request in bench.proxy.seen if is_part(request)]
    # The part before may lie there too, its answer not read yet when the process was killed.
    assert len(again) <= 4 - number + 2 and sent + sum(r.body for r in bench.proxy.seen if is_part(r)) <= 6 * PART
    bench.assert_whole(export)
    assert site(bench).uploads() == []


def test_an_upload_that_the_service_forgot_begins_anew(bench: Bench) -> None:
    export = one_file(bench)

    def forget(request: Request) -> None:
        for key, number in site(bench).uploads():
            site(bench).plain("DELETE", f"/models/{urllib.parse.quote(key)}?uploadId={number}")

    bench.proxy.plan(Fault(before=forget), when=is_part, first=3)
    assert bench.deliver(export).receipt.moved
    bench.assert_whole(export)


def test_an_error_behind_a_200_is_no_success(bench: Bench) -> None:
    export = one_file(bench)
    bench.proxy.plan(Fault(answer=error(200, "InternalError")), when=is_end)
    assert bench.deliver(export).receipt.sent >= export.size
    bench.assert_whole(export)


def test_uploads_that_nobody_will_end_are_cancelled(bench: Bench) -> None:
    export = one_file(bench)
    version = bench.deliver(export).receipt.version
    site(bench).plain("POST", f"/models/some/where/{version}/pytorch/model.safetensors?uploads=", b"")
    assert len(site(bench).uploads()) == 1
    bench.deliver(export).receipt  # noqa: B018
    assert site(bench).uploads() == []


def test_a_clock_that_is_wrong_goes_by_the_services(bench: Bench) -> None:
    ahead = time.time() + 7200
    bench.proxy.plan(Fault(answer=error(403, "RequestTimeTooSkewed", Date=email.utils.formatdate(ahead, usegmt=True))))
    assert bench.deliver(bench.export()).receipt.moved
    moment = time.strptime(bench.proxy.seen[-1].headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
    assert abs(time.mktime(moment) - time.timezone - ahead) < 600


def test_what_may_pass_is_told_by_its_code(bench: Bench) -> None:
    for status, code in ((400, "RequestTimeout"), (409, "OperationAborted"), (503, "SlowDown")):
        bench.proxy.clear()
        bench.proxy.plan(Fault(answer=error(status, code)), when=writes, first=2)
        assert bench.deliver(bench.export(run=code)).receipt.moved


def test_another_writer_at_the_same_moment_is_looked_at_again(bench: Bench) -> None:
    bench.proxy.plan(
        Fault(answer=error(409, "ConditionalRequestConflict")),
        when=lambda request: writes(request) and request.path.endswith("latest.json"),
    )
    assert bench.deliver(bench.export()).receipt.moved


def test_a_service_without_conditional_writes_is_said_and_can_be_used(bench: Bench) -> None:
    def conditional(request: Request) -> bool:
        return bool({"if-match", "if-none-match"} & request.headers.keys())

    bench.proxy.plan(Fault(answer=error(501, "NotImplemented")), when=conditional, times=None)
    end = bench.deliver(bench.export()).end
    assert end.permanent and end.fault and "fence = false" in end.fault.sentence()
    site(bench).more = {"fence": False}
    assert bench.deliver(bench.export(100)).receipt.moved and not bench.deliver(bench.export(50)).receipt.moved
    bench.assert_whole(bench.export(100), bench.export(50))


def test_a_secret_that_a_service_repeats_is_masked(bench: Bench) -> None:
    bench.proxy.plan(Fault(answer=error(400, "InvalidArgument")), times=None)
    delivery = bench.deliver(bench.export())
    assert delivery.end.fault and "***" in delivery.end.fault.sentence()
    assert SECRET not in json.dumps(delivery.lines) and SECRET.encode() not in delivery.errors


def test_the_secret_is_in_no_process_list(bench: Bench) -> None:
    shown: list[bytes] = []
    started: list[Delivery] = []

    def look(request: Request) -> None:
        process = Path(f"/proc/{started[0].process.pid}")
        shown.append((process / "cmdline").read_bytes() + (process / "environ").read_bytes())

    bench.proxy.plan(Fault(before=look), when=is_part)
    started.append(bench.start(one_file(bench)))
    assert started[0].receipt.moved and shown and all(SECRET.encode() not in each for each in shown)


def test_contents_of_another_version_are_copied_by_the_service(bench: Bench) -> None:
    bench.deliver(bench.export(100, seed=1)).receipt  # noqa: B018
    bench.proxy.clear()
    receipt = bench.deliver(bench.export(200, seed=1)).receipt
    copies = [request for request in bench.proxy.seen if "x-amz-copy-source" in request.headers]
    assert len(copies) >= 7 and all(request.body == 0 for request in copies) and receipt.there >= 280_000
    site(bench).plain("DELETE", "/models/some/where/" + bench.listed("run-a")[0].version + "/onnx/model.onnx")
    assert bench.deliver(bench.export(300, seed=1)).receipt.moved, "what a manifest names and is gone is sent"


def test_pages_read_ranges_and_what_a_file_is(bench: Bench) -> None:
    export = bench.export()
    version = bench.deliver(export).receipt.version
    port = site(bench).port

    def get(key: str, **headers: str) -> tuple[int, Message, bytes]:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/models/some/where/{key}", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read()

    site(bench).plain(
        "PUT", "/models?acl", b"", **{"x-amz-acl": "public-read"}
    )  # fmt: skip
    for key in dict(site(bench).keys()):
        site(bench).plain("PUT", f"/models/some/where/{urllib.parse.quote(key)}?acl", b"", **{"x-amz-acl": "public-read"})
    status, headers, body = get(f"{version}/onnx/model.onnx", Range="bytes=1000-1999")
    assert status == 206 and body == (export.folder / "onnx/model.onnx").read_bytes()[1000:2000]
    assert "immutable" in headers["Cache-Control"] and headers["Content-Type"] == "application/octet-stream"
    status, headers, body = get("run-a/latest.json")
    assert headers["Cache-Control"] == "no-cache" and headers["Content-Type"] == "application/json"
    manifest = get(f"run-a/{json.loads(body)['path']}MANIFEST.json")[2]
    assert json.loads(body)["manifest_sha256"] == hashlib.sha256(manifest).hexdigest()


@pytest.mark.parametrize("point", ["deliver.put", "deliver.compared", "deliver.finished", "deliver.before-end"])
def test_a_reader_never_sees_half_of_what_is_killed(bench: Bench, point: str) -> None:
    first, second = bench.export(100), bench.export(200, own=True)
    bench.deliver(first).receipt  # noqa: B018
    with bench.reader(first, second):
        bench.site.variables["CKPTD_FAULT"] = point
        killed = bench.start(second).wait()
        assert killed.killed
        del bench.site.variables["CKPTD_FAULT"]
        new = bench.deliver(second, resume=killed.notes).receipt
    assert bench.site.current("run-a") == new.version


def test_a_bucket_that_is_not_there_is_said(bench: Bench) -> None:
    site(bench).more = {"url": "s3://nothing/here"}
    for action in ("deliver", "look", "list"):
        end = bench.deliver(bench.export(), action=action).end
        assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_REFUSED and "NoSuchBucket" in end.fault.sentence()


def test_each_request_is_signed_as_botocore_signs_it(bench: Bench) -> None:
    """The server checks each signature with botocore's code, and knows one user."""

    def ask(service: str, path: str, body: str) -> str:
        scope = f"AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/{service}/aws4_request, SignedHeaders=host, Signature=x"
        headers = {"Authorization": scope, "Content-Type": "text/plain" if service == "moto-api" else "application/x-www-form-urlencoded"}
        request = urllib.request.Request(f"http://127.0.0.1:{site(bench).port}{path}", body.encode(), headers, method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            said: str = answer.read().decode()
        return said

    policy = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]})
    ask("iam", "/", "Action=CreateUser&Version=2010-05-08&UserName=trainer")
    words = urllib.parse.urlencode({"UserName": "trainer", "PolicyName": "all", "PolicyDocument": policy})
    ask("iam", "/", f"Action=PutUserPolicy&Version=2010-05-08&{words}")
    said = ask("iam", "/", "Action=CreateAccessKey&Version=2010-05-08&UserName=trainer")
    key, secret = (said.split(f"<{name}>")[1].split("<")[0] for name in ("AccessKeyId", "SecretAccessKey"))
    export = bench.export(run="日本語 #1?&%2f+~")
    for given, accepted in ((secret, True), (secret[:-1] + "?", False)):
        site(bench).secret = f"AWS_ACCESS_KEY_ID={key}\nAWS_SECRET_ACCESS_KEY={given}\n"
        ask("moto-api", "/moto-api/reset-auth", "0")
        end = bench.deliver(export).end
        ask("moto-api", "/moto-api/reset-auth", "inf")
        assert (end.receipt is not None) is accepted
        if end.fault:
            assert end.fault.code == FaultCode.DELIVERY_REFUSED and "SignatureDoesNotMatch" in end.fault.sentence()
    bench.assert_whole(export)
    assert bench.site.current(export.run)


def test_a_file_that_was_damaged_or_removed_there_is_put_again(bench: Bench) -> None:
    export, far = bench.export(), site(bench)
    version = bench.deliver(export).receipt.version
    for harm in (b"", b"x" * 150_000, None):
        key = f"{version}/pytorch/model.safetensors"
        far.plain("DELETE", f"/models/some/where/{key}") if harm is None else far.put(key, harm)
        assert bench.deliver(export).receipt.sent >= 150_000
        bench.assert_whole(export)


def test_what_is_taken_away_while_it_is_brought_is_not_visible_without_its_files(bench: Bench) -> None:
    export = bench.export()
    taken = list[End]()

    def take(request: Request) -> None:
        bench.proxy.clear()
        taken.append(bench.remove(f"run-a/{version}"))

    version = bench.deliver(export).receipt.version.partition("/")[2]
    bench.deliver(bench.export(200))
    bench.remove(f"run-a/{version}")
    bench.proxy.plan(Fault(before=take), when=lambda request: request.method == "PUT" and request.path.endswith("/MANIFEST.json"))
    end = bench.deliver(export).end
    assert taken and taken[0].fault is None and end.fault and not end.permanent and "taken away" in end.fault.sentence()
    bench.assert_whole(export, bench.export(200))
    assert bench.deliver(export).receipt
    bench.assert_whole(export, bench.export(200))
