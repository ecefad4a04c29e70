"""Who is refused: foreign hosts and origins, paths that climb, machine texts that would read files or name classes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from hypothesis import example, given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from trainyard.errors import TrainyardError
from trainyard.machines import names
from trainyard.web import guard, tasks
from trainyard.web.assets import versioned
from trainyard.web.security import Security, hostname

HERE = "127.0.0.1:8080"


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1", "127.0.0.1:9", "[::1]:8080", "LOCALHOST"])
def test_our_own_names_are_served(client: Any, host: str) -> None:
    assert client.get("/api/version", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "192.168.0.7",
        "",
        "localhost@evil.example",
        "evil@127.0.0.1",
        "a:b@localhost:8080",
        "localhost/x",
        "[::1",
    ],
)
def test_other_names_are_refused(client: Any, host: str) -> None:
    answer = client.get("/api/version", headers={"host": host})
    assert answer.status_code == 421
    assert set(answer.json()) == {"error"}


def test_a_server_for_all_addresses_takes_any_address_and_no_name() -> None:
    def problem(host: str, given: str = "0.0.0.0") -> bool:
        return Security(None, host=given).problem("GET", Headers({"host": host}), True) is not None  # type: ignore[arg-type]

    assert not problem("192.168.0.7:8080")
    assert not problem("[fe80::1]:8080")
    assert problem("evil.example")
    assert not problem("my-machine:8080", "my-machine")
    assert problem("192.168.0.7", "my-machine")


@given(st.text(max_size=60))
def test_no_host_header_brings_it_down(header: str) -> None:
    assert isinstance(hostname(header), str)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"origin": f"http://{HERE}"}, True),
        ({"origin": f"http://{HERE}", "sec-fetch-site": "same-origin"}, True),
        ({"origin": "http://127.0.0.1:9999"}, False),
        ({"origin": "https://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": f"file://{HERE}"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
    ],
)
def test_posts_and_deletes_come_from_the_page_alone(client: Any, headers: dict[str, str], allowed: bool) -> None:
    posted = client.post("/api/jobs", json={"workload": "linear", "machine": "npu"}, headers=headers)
    assert posted.status_code == (200 if allowed else 403)
    deleted = client.delete("/api/jobs/nothing", headers=headers)
    assert deleted.status_code == (404 if allowed else 403)


def test_every_answer_carries_the_headers(client: Any) -> None:
    for path in ("/", "/api/version", "/api/nothing", "/static/nothing", "/api/machine?text=nppu"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        policy = dict(rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["script-src"] == policy["connect-src"] == "'self'"
        assert "frame-ancestors" in policy
        assert "http" not in headers["content-security-policy"]
        assert (headers.get("cache-control") == "no-store") == path.startswith("/api")


def test_files_come_once_compressed_and_are_known_again(client: Any) -> None:
    from plotly.offline import get_plotlyjs

    first = client.get("/static/plotly.min.js")
    assert first.text == get_plotlyjs()
    assert first.headers["content-encoding"] == "gzip"
    assert int(first.headers["content-length"]) < len(first.content) / 2
    tag = first.headers["etag"]
    assert tag.startswith('"')
    again = client.get("/static/plotly.min.js", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")
    plain = client.get("/static/plotly.min.js", headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.headers["etag"] != tag
    named = tag.strip('"').removesuffix("-gz")
    forever = client.get(f"/static/plotly.min.js?v={named}")
    assert "immutable" in forever.headers["cache-control"]
    assert "immutable" not in client.get("/static/plotly.min.js?v=other").headers["cache-control"]


def test_the_page_names_its_files_by_their_content(client: Any) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "text/html" in page.headers["content-type"]
    assert client.head("/").status_code == 200
    known = client.app.state.server.assets.files
    assert versioned(b'<a href="/static/none.css">', known) == b'<a href="/static/none.css">'
    for name, asset in known.items():
        if f"/static/{name}".encode() in known["index.html"].content:
            assert f"/static/{name}?v={asset.tag}".encode() in known["index.html"].content
            assert "immutable" in client.get(f"/static/{name}?v={asset.tag}").headers["cache-control"]
    assert b"//cdn" not in known["index.html"].content


CLIMBS = [
    "../settings.py",
    "..%2fsettings.py",
    "%2e%2e%2fsettings.py",
    "..%5csettings.py",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "..;/app.py",
    "static/../../app.py",
]


@pytest.mark.parametrize("path", CLIMBS)
def test_no_path_climbs(client: Any, path: str) -> None:
    answer = client.get(f"/static/{path}")
    assert answer.status_code == 404
    assert "def " not in answer.text


@given(st.text(alphabet=st.sampled_from("./\\%25ef~ab\0"), max_size=30))
def test_no_name_finds_a_file_that_is_not_listed(client: Any, name: str) -> None:
    import asyncio
    from urllib.parse import quote

    assets = client.app.state.server.assets
    assert asyncio.run(assets.find(name)) is None or name in assets.files
    assert client.get(f"/static/{quote(name, safe='')}").status_code in (200, 404, 405) or not name


opened: list[str] | None = None
"""Files that are opened while a test listens."""


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if opened is not None and event in ("open", "os.listdir", "subprocess.Popen", "os.system"):
        opened.append(str(arguments[0]))


SPICE = [
    ".toml",
    ".cfg",
    "'",
    '"',
    "(",
    ")",
    ",",
    "=",
    "bait",
    "/",
    "..",
    "array",
    "device",
    "base",
    "type",
    "subprocess:Popen",
    " ",
    "GB/s",
    "75",
]


@pytest.fixture(scope="module")
def bait(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bait") / "bait.toml"
    path.write_text('base = "npu"\n')
    path.with_suffix(".cfg").write_text("[architecture_presets]\n")
    sys.addaudithook(_listen)  # here, not on import: it is called for every `id()`, in all tests that follow
    return path


@given(
    st.lists(st.sampled_from([*SPICE, *list(names())[:6], "BAIT"]), max_size=12).map("".join),
    st.dictionaries(
        st.sampled_from(["array", "device", "dram", "array.rows", "base", "type"]),
        st.sampled_from(["BAIT", "'BAIT'", "npu(array='BAIT')", 4, [1, 2], "os:stat_result"]),
    ),
)
@example("BAIT", {})
@example("'BAIT'", {})
@example("npu(array='BAIT')", {})
@example("npu(array=\"'BAIT'\")", {})
@example("npu", {"array": "BAIT"})
@example("npu", {"array": "systolic(rows='BAIT')"})
@example("mcdla-b(device=npu(array=subprocess:Popen))", {})
def test_no_machine_text_opens_a_file_or_names_a_class(bait: Path, text: str, settings: dict[str, Any]) -> None:
    global opened
    text = text.replace("BAIT", str(bait))
    settings = {key: value.replace("BAIT", str(bait)) if isinstance(value, str) else value for key, value in settings.items()}
    opened = []
    try:
        made = tasks.built(text, settings, {})
    except TrainyardError:
        made = None
    finally:
        seen, opened = opened, None
    assert not [path for path in seen if "bait" in path]
    assert made is None or type(made).__module__.startswith("trainyard.")


@pytest.mark.probe
def test_brackets_and_signs_of_a_machine_text_are_bounded() -> None:
    def nested(depth: int) -> str:
        return "a(b=" * depth + "c" + ")" * depth

    guard.require_plain(nested(guard.DEEPEST), "machine")
    with pytest.raises(TrainyardError, match="brackets in brackets"):
        guard.require_plain(nested(guard.DEEPEST + 1), "machine")
    guard.require_plain("x" * guard.LONGEST, "machine")
    with pytest.raises(TrainyardError, match="signs"):
        guard.require_plain("x" * (guard.LONGEST + 1), "machine")
    deep: Any = "c"
    for _ in range(guard.DEEPEST + 2):
        deep = [deep]
    with pytest.raises(TrainyardError, match="tables in tables"):
        guard.require_plain(deep, "machine")
