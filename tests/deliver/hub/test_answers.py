"""How the Hub says what is in the way: limits in a header of its own, and refusals of one large file within an answer that is well."""

from __future__ import annotations

import json

import pytest

from daemon.contract.faults.fault_codes import FaultCode
from tests.deliver.contract.bench import Bench
from tests.deliver.proxy import Answer, Fault, Request
from tests.deliver.sites.hub import SITE


def test_a_limit_of_requests_is_waited_out_as_long_as_it_says(bench: Bench) -> None:
    answer = Answer(429, {"RateLimit": '"api";r=0;t=217'}, b'{"error": "Too many requests"}')
    bench.proxy.plan(Fault(answer=answer), times=None)
    end = bench.deliver(bench.export()).end
    assert not end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_FAR_END and end.retry_after == 217


@pytest.mark.parametrize(
    ("code", "words", "fault", "permanent"),
    [
        (403, "Private repository storage limit reached", FaultCode.DELIVERY_FULL, False),
        (403, "You may not write to this repository", FaultCode.DELIVERY_REFUSED, True),
        (500, "try again", FaultCode.DELIVERY_FAR_END, False),
        (422, "the file is too large", FaultCode.DELIVERY_REFUSED, True),
    ],
)
def test_a_large_file_that_is_refused_is_said(bench: Bench, site: SITE, code: int, words: str, fault: FaultCode, permanent: bool) -> None:
    def refused(body: bytes) -> bytes:
        row = json.loads(body)["objects"][0]
        said = json.dumps({"objects": [{"oid": row["oid"], "size": row["size"], "error": {"code": code, "message": words}}]})
        return said.ljust(len(body)).encode()  # of the same length

    def is_batch(request: Request) -> bool:
        return request.path.endswith("/objects/batch")

    bench.proxy.plan(Fault(corrupt=refused), when=is_batch, times=None)
    export = bench.export()
    end = bench.deliver(export).end
    assert end.fault and end.fault.code == fault and end.permanent is permanent and words in end.fault.sentence()
    assert not site.visible("run-a") and site.current("run-a") is None
    bench.proxy.clear()
    assert bench.deliver(export).receipt.moved
