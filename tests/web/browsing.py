"""A server, a browser and visits: what the browser's tests share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
LOOPBACK = ("127.0.0.1", "localhost", "")
CONTROLS = ("button", "textbox", "searchbox", "combobox", "listbox", "checkbox", "spinbutton", "link", "tab", "tabpanel", "region",
            "progressbar", "radio", "switch", "slider")  # fmt: skip


def missing(reason: str) -> None:
    if os.environ.get("TRAINYARD_BROWSER") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass
class Visit:
    """One page in a context of its own, what it asked for and what it complained about."""

    page: Any
    base: str
    expected: tuple[str, ...] = ()
    requested: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def go(self, path: str) -> None:
        self.page.goto(self.base + path)

    def require_quiet(self) -> None:
        """No request to anywhere else, no error but those that a test expects."""
        assert [
            url for url in self.requested if urlsplit(url).hostname not in LOOPBACK and not url.startswith(("data:", "blob:"))
        ] == []
        assert [text for text in self.complaints if not any(part in text for part in self.expected)] == []

    def focused(self) -> str:
        """The id or the name of what has the focus."""
        found: str = self.page.evaluate(
            """() => { const here = document.activeElement;
               const label = here.getAttribute('aria-label') ?? here.labels?.[0]?.textContent;
               return here.getAttribute('role') === 'tab' ? here.id : label ?? here.textContent; }"""
        )
        return found

    def tab_to(self, name: str, most: int = 80) -> None:
        """Presses Tab until that has the focus, as a person would who sees no pointer."""
        for _ in range(most):
            if self.focused() == name:
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not lead to {name!r}")

    def settled(self) -> None:
        """Waits until nothing in the page has changed for a while: plots are drawn again when the window changes."""
        self.page.evaluate(
            """() => new Promise(done => {
                let timer;
                const watch = new MutationObserver(() => wait());
                const end = () => { watch.disconnect(); done(); };
                const wait = () => { clearTimeout(timer); timer = setTimeout(end, 500); };
                watch.observe(document.body, {childList: true, subtree: true});
                wait();
            })"""
        )

    def tab_order(self, presses: int) -> list[int]:
        """The places in the document of what Tab leads to, until it comes round."""
        self.page.evaluate("document.activeElement.blur(); window.getSelection().removeAllRanges(); scrollTo(0, 0)")
        found: list[int] = []
        for _ in range(presses):
            self.page.keyboard.press("Tab")
            place = self.page.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)")
            if found and place <= found[0]:
                break
            found.append(place)
        return found

    def unnamed(self) -> list[str]:
        """Controls, landmarks and pictures that a screen reader has no name for."""
        session = self.page.context.new_cdp_session(self.page)
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        return [
            f"{node['role']['value']} {node.get('backendDOMNodeId')}"
            for node in nodes
            if not node.get("ignored") and node.get("role", {}).get("value") in CONTROLS and not node.get("name", {}).get("value")
        ]


@dataclass
class Browsing:
    """One server and one browser."""

    browser: Any
    base: str

    @contextmanager
    def visit(self, **options: Any) -> Iterator[Visit]:
        context = self.browser.new_context(**{"viewport": {"width": 1300, "height": 900}, "reduced_motion": "reduce", **options})
        visit = Visit(page=context.new_page(), base=self.base)
        context.on("request", lambda request: visit.requested.append(request.url))
        visit.page.on("console", lambda said: visit.complaints.append(said.text) if said.type in ("error", "warning") else None)
        visit.page.on("pageerror", lambda error: visit.complaints.append(f"{error} {error.stack}"))
        try:
            yield visit
        finally:
            context.close()


@contextmanager
def launched() -> Iterator[Any]:
    """A browser; the test is skipped, or fails if `TRAINYARD_BROWSER` is `required`, where there is none."""
    chromium = os.environ.get("TRAINYARD_CHROMIUM", CHROMIUM)
    if shutil.which(chromium) is None:
        missing(f"no browser at {chromium}: apt-get install chromium, or name one in TRAINYARD_CHROMIUM")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        missing("playwright is not installed: pip install playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def browsing(
    folders: pytest.TempPathFactory, study: Mapping[str, Any], beside: Mapping[str, Any] | None = None, cache: str | None = None
) -> Iterator[Browsing]:
    """A server with a real store of that study and a ledger cache of its own, and a browser; both end with it.

    With a study `beside` it, there is a store of that in a folder `studies`, and one of the first study that is unfinished.
    """
    from trainyard.sweep import running
    from trainyard.sweep.study import Study
    from trainyard.workloads import zoo

    stores = folders.mktemp("swept")
    running.sweep(Study.from_table(dict(study)), stores / f"{study['name']}.store", workers=1)
    if beside is not None:
        _cut(stores / f"{study['name']}.store", stores / "cut.store")
        folder = stores / "studies"
        folder.mkdir()
        (folder / "own.json").write_text(zoo.load("linear", batch=4).to_json())
        running.sweep(Study.from_table(dict(beside), folder=folder), folder / f"{beside['name']}{running.SUFFIX}", workers=1)
    environment = {**os.environ, "TRAINYARD_CACHE": cache or str(folders.mktemp("kept"))}
    with launched() as browser, _served(stores, environment) as base:
        yield Browsing(browser, base)


def _cut(whole: Path, cut: Path, records: int = 2) -> None:
    """A store as a sweep leaves it that was ended after so many points."""
    from trainyard.sweep.store import Store

    source = Store(whole)
    store = Store.begin(cut, source.manifest["study"], points=len(source))
    with store.writing():
        store.append(source.records()[:records])
        store.compact()


@contextmanager
def _served(stores: Path, environment: Mapping[str, str]) -> Iterator[str]:
    command = [sys.executable, "-m", "trainyard", "serve", "--port", "0", "--no-open", "--stores", str(stores)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(environment)) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            assert "http://127.0.0.1:" in said, f"trainyard serve said {said!r}"
            yield said.split()[2].rstrip("/")
        finally:
            server.terminate()
            server.wait(20)
