"""Who may ask, and what a page may do: headers, the token, and requests of other sites' pages."""

from __future__ import annotations

import secrets
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1", "[::1]")
"""Host headers that only this machine's own browser sends: a name that was bound to 127.0.0.1 by
somebody's DNS is not among them."""
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    # With no-referrer a browser would call the origin of our own forms null.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_COOKIE = "eagle3data-view"
_PARAMETER = "token"


class SafeHeaders:
    """Adds the headers that keep a page from running or asking for anything but ours."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                # Vectors and texts are the visitor's own: no copy of a page stays anywhere.
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers)


class OwnPagesOnly:
    """Refuses what another site's page makes a browser send: only our own forms may post."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and not _is_own(Request(scope)):
            refused = PlainTextResponse("This was not asked by a page of this server.", 403)
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_own(request: Request) -> bool:
    origin = request.headers.get("origin")
    return origin == f"{request.url.scheme}://{request.headers.get('host')}"


class TokenRequired:
    """Lets in who shows the token: once in the address, from then on by a cookie."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        if self._is_right(request.cookies.get(_COOKIE)):
            await self._app(scope, receive, send)
        elif self._is_right(request.query_params.get(_PARAMETER)):
            await self._welcome(request)(scope, receive, send)
        else:
            said = "Open the address that `eagle3data view` printed: it ends in ?token=..."
            await PlainTextResponse(said, 401)(scope, receive, send)

    def _is_right(self, shown: str | None) -> bool:
        return shown is not None and secrets.compare_digest(shown.encode(), self._token.encode())

    def _welcome(self, request: Request) -> Response:
        """The same page without the token, which then stands in no history and no screenshot."""
        kept = [(key, value) for key, value in request.query_params.multi_items()]
        query = urlencode([(key, value) for key, value in kept if key != _PARAMETER])
        # A path alone: what begins with two slashes would be another host.
        place = "/" + request.url.path.lstrip("/") + (f"?{query}" if query else "")
        response = RedirectResponse(place, 303)
        response.set_cookie(_COOKIE, self._token, httponly=True, samesite="strict")
        return response
