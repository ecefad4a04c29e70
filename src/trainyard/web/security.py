"""Who may ask, and what a browser may do with an answer: a middleware around everything.

A page on some other site can make a visitor's browser send requests here. It can point a name of its own at 127.0.0.1 (DNS
rebinding: then the Host header has that name), or post across origins (then the Origin header or Sec-Fetch-Site tells).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANY = ("0.0.0.0", "::")
HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[\w.-]+))(?::[0-9]{1,5})?", re.ASCII)
"""uri-host [":" port] of RFC 9110, section 7.2, without percent signs and the like, which no name of ours has."""
SAFE = ("GET", "HEAD", "OPTIONS")
# plotly writes style elements and saves pictures from data: and blob: addresses; nothing else comes from anywhere but here
POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


def hostname(header: str) -> str:
    """The name in a Host header, without port and brackets; '' where the header is not a name and a port.

    A user before the name (`evil@127.0.0.1`), a path or a query is not read over: no browser sends them in a Host header.

    >>> hostname("localhost:8080"), hostname("[::1]:80"), hostname("evil.example"), hostname("evil@127.0.0.1")
    ('localhost', '::1', 'evil.example', '')
    """
    match = HOST.fullmatch(header)
    return (match["address"] or match["name"]).lower() if match else ""


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class Security:
    """Refuses hosts and origins that are not ours, and adds the headers."""

    def __init__(self, app: ASGIApp, *, host: str, more: Iterable[str] = ()) -> None:
        self.app = app
        self.hosts = {*LOOPBACK, host.lower(), *more}
        self.anywhere = host in ANY  # bound to every address: any address may be meant, but no name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_api = scope["path"].startswith("/api")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if is_api:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        if problem := self.problem(scope["method"], headers, is_api):
            status, line = problem
            await JSONResponse({"error": line}, status)(scope, receive, with_headers)
            return
        await self.app(scope, receive, with_headers)

    def problem(self, method: str, headers: Headers, is_api: bool) -> tuple[int, str] | None:
        """Why a request is refused, if it is."""
        name = hostname(headers.get("host", ""))
        if name not in self.hosts and not (self.anywhere and _is_address(name)):
            return (
                421,
                f"this server is not '{name[:100]}': open it as localhost or 127.0.0.1 (trainyard serve --host names another)",
            )
        site = headers.get("sec-fetch-site", "none")
        if is_api and site not in ("none", "same-origin"):
            return 403, "refused: the request comes from another site"
        origin = headers.get("origin")
        if method not in SAFE and origin is not None and _place(origin) != headers.get("host", "").lower():
            return 403, f"refused: the request comes from '{origin[:100]}'"
        return None


def _place(origin: str) -> str:
    """Host and port of an origin; '' for `null` and what is no origin."""
    scheme, _, place = origin.lower().partition("://")
    return place if scheme in ("http", "https") else ""
