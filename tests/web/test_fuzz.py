"""Whatever is posted: an answer in JSON that blames the right side, never a 500, never a dead server."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("fastapi")

from hypothesis import example, given
from hypothesis import strategies as st

from trainyard.errors import BadInput
from trainyard.web import requests

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = [
    "workload",
    "machine",
    "batch",
    "settings",
    "masks",
    "at",
    "parallel",
    "inference",
    "whatif",
    "metric",
    "only",
    "pairs",
    "range",
    "paper",
]
WORDS = st.sampled_from(
    [
        "linear",
        "npu",
        "direct",
        "mcdla-b",
        "sparsity(A=0.5)",
        "sparsity(",
        "npu(",
        "npu(dram=",
        "npu(array=npu)",
        "data",
        "time_s",
        "sigma",
    ]
)
PATHS = st.sampled_from(
    ["dram", "array.rows", "array", "clock", "device.array", "order", "fusion", "tiling", "precision", "a..b", "."]
)
VALUES = st.sampled_from(
    [0, -1, 1, 2.5, 1e300, True, None, "0", "x", "75 GB/s", "-1 GB/s", "npu", "systolic(rows=0)", [1, 2], [], [[1]], "(1,2,3)", ""]
)
REQUESTS = st.fixed_dictionaries(
    {"workload": WORDS | st.text(max_size=10), "machine": WORDS | st.text(max_size=10)},
    optional={
        "settings": st.dictionaries(PATHS, VALUES, max_size=3),
        "masks": WORDS,
        "batch": st.integers(-1, 3) | st.just(2**40),
        "whatif": st.booleans(),
        "metric": WORDS,
    },
)


def checked(answer: Any, *known: int) -> None:
    assert answer.status_code in known, (answer.status_code, answer.text)
    if answer.status_code >= 400:
        assert set(answer.json()) == {"error"}
        assert "\n" not in answer.json()["error"]
        assert "Traceback" not in answer.text


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(b"")
@example(b"[" * 100_000)
@example(b'{"a":' * 20_000)
@example(b"1" * 10_000)
@example(b'{"workload": "\\ud800", "machine": "npu"}')
@example(b'{"workload": "linear", "machine": "npu", "batch": 1e400}')
@example(b'{"workload": "linear", "machine": "npu", "batch": NaN}')
@example(b'{"workload": "linear", "machine": "npu", "workload": 3}')
@example(b'\xff\xfe{"paper": "sigma"}')
def test_no_body_is_more_than_a_bad_request(client: Any, body: bytes) -> None:
    checked(client.post("/api/jobs", content=body), 400, 404, 413)


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), ANYTHING, max_size=5))
def test_no_object_brings_the_reader_down(value: dict[str, Any]) -> None:
    body = json.dumps(value, allow_nan=True).encode("utf-8", "surrogatepass")
    said = ""
    try:
        assert requests.read(body).arguments()
    except BadInput as error:
        said = str(error)
    assert "\n" not in said


@given(REQUESTS)
def test_no_request_is_a_fault_of_the_server(client: Any, request_: dict[str, Any]) -> None:
    answer = client.post("/api/jobs", json=request_)
    checked(answer, 200, 400, 404, 429)
    if answer.status_code == 200:
        client.delete(f"/api/jobs/{answer.json()['id']}")


@given(st.text(max_size=60))
@example("npu(" * 3000)
@example("((((((")
@example("npu(tiling=(1,2,3),array=systolic(rows=1000000000000))")
@example("mcdla-b(devices=1000000)")
@example("upload-0123456789abcdef")
def test_no_machine_text_is_a_fault_of_the_server(client: Any, text: str) -> None:
    checked(client.get("/api/machine", params={"text": text}), 200, 400, 404)


@pytest.mark.parametrize("wait", ["x", "nan", "inf", "-1", "1e999"])
def test_strange_waits_are_refused_or_do_not_wait(client: Any, wait: str) -> None:
    job = client.finished(workload="linear", machine="npu")
    checked(client.get(f"/api/jobs/{job['id']}", params={"wait": wait}), 200, 400)


@pytest.mark.parametrize("query", [{"offset": -1}, {"limit": -1}, {"offset": "x"}, {"offset": 10**30}, {"limit": 10**30}])
def test_strange_pages_are_refused_or_empty(client: Any, query: dict[str, Any]) -> None:
    checked(client.get("/api/stores/npu.store", params=query), 200, 400)
