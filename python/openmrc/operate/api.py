"""The controller's HTTP interface: JSON, a stream of changes, metrics, and the page.

Whoever reaches it may read. Changes need the operators' token, reports the token of the host's agent.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from importlib import resources
from typing import Any

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse

import openmrc
from openmrc import colours
from openmrc.control import Token
from openmrc.errors import ArgumentError, StateError
from openmrc.operate import metrics, model
from openmrc.operate.model import API
from openmrc.operate.reports import PATH, Reports, Scope, Send, bearer, described
from openmrc.operate.series import KEPT_S
from openmrc.operate.service import Service
from openmrc.operate.validate import validate
from openmrc.switchconf.render import resolved

_HEARTBEAT_S = 10.0
_MOST_HOSTS = 4096
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
}
_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        b" img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


def application(service: Service, token: Token | None, *, names: frozenset[str] | None = None) -> "Guard":
    """The ASGI application of a controller.

    Args:
        service: The controller.
        token: The operators'; ``None``: nothing can be changed, and reports are taken from this machine only.
        names: Host names that requests may be for; ``None``: any. A page of another site can make a browser
            ask a controller on loopback by a name of its own, and read the answer; this stops it.
    """
    app = FastAPI(
        title="openmrc controller",
        version=openmrc.__version__,
        openapi_url=f"{API}/openapi.json",
        # Their pages load scripts from another site.
        docs_url=None,
        redoc_url=None,
    )
    _described(app)
    _errors(app)
    _reading(app, service)
    _changing(app, service, token)
    _page(app)
    return Guard(app, Reports(service, token), names)


def _described(app: FastAPI) -> None:
    """Adds to the description what is answered beside the framework."""
    whole = app.openapi

    def openapi() -> dict[str, Any]:
        found = whole()
        found["paths"].setdefault(PATH, described())
        return found

    app.openapi = openapi  # type: ignore[method-assign]


def _errors(app: FastAPI) -> None:
    @app.exception_handler(ArgumentError)
    async def wrong(_: Request, error: ArgumentError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)

    @app.exception_handler(StateError)
    async def unable(_: Request, error: StateError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return JSONResponse({"detail": f"{where}: {first['msg']}"[:300]}, 422)


def _reading(app: FastAPI, service: Service) -> None:
    @app.get(f"{API}/status")
    async def status() -> model.Status:
        """The fabric in a few figures."""
        return service.status()

    @app.get(f"{API}/fabric")
    async def fabric() -> model.FabricInfo:
        """The links by number, in rectangles that can be drawn."""
        return service.fabric_info()

    @app.get(f"{API}/names")
    async def names(
        first: int = Query(ge=0), count: int = Query(1, ge=1, le=model.MOST_NAMES)
    ) -> list[str | None]:
        """Names of links by number, from ``first`` on: fewer at the end; null where there is no link."""
        return service.names(first, count)

    @app.get(f"{API}/fabric/specification", response_class=Response)
    async def specification() -> Response:
        """The fabric's file, with every default filled in."""
        return Response(resolved(service.fabric), media_type="application/yaml")

    @app.get(f"{API}/map", response_class=Response)
    async def whole_map() -> Response:
        """A byte for each link number: evidence in the lower half, decision in the upper; 255: no link."""
        return Response(service.map.snapshot(), media_type="application/octet-stream")

    @app.get(f"{API}/link")
    async def link(name: str = Query(max_length=128)) -> model.LinkInfo:
        """A link, by its name or a port, with its history."""
        return await service.link(name)

    @app.get(f"{API}/faults")
    async def faults(over: bool = False) -> list[model.NamedFault]:
        """Open faults, the one that costs most first; or those that are over, the newest first."""
        return service.faults.over[::-1][: service.settings.history] if over else service.faults.ranked()

    @app.get(f"{API}/hosts")
    async def hosts() -> list[model.HostInfo]:
        """Hosts that have been heard."""
        return service.hosts()

    @app.get(f"{API}/jobs")
    async def jobs() -> list[model.JobInfo]:
        """Jobs with their goodput now, by plane, and what named faults cost them."""
        return service.jobs.info(time.monotonic())

    @app.get(f"{API}/job")
    async def job(
        name: str = Query(max_length=model.MOST_JOB_NAME), seconds: float = Query(600.0, gt=0, le=KEPT_S)
    ) -> model.JobSeries:
        """The goodput of a job over time, by plane."""
        return service.jobs.series(name, seconds, time.monotonic(), time.time())

    @app.get(f"{API}/decisions")
    async def decisions() -> list[model.Outcome]:
        """The audit log, the newest first: who, what, why, and what became of it."""
        return await service.decisions()

    @app.get(f"{API}/validate")
    async def validation(hosts: str = Query(max_length=1 << 16)) -> model.Validation:
        """Verdicts for the hosts of a job.

        Args:
            hosts: Names with commas.
        """
        names = [name for name in hosts.split(",") if name]
        if not 1 <= len(names) <= _MOST_HOSTS:
            raise ArgumentError(f"name 1 to {_MOST_HOSTS} hosts, not {len(names)}")
        patience = service.settings.patience_s
        return validate(service.map, names, service.faults.ranked(), time.monotonic(), patience)

    @app.get(f"{API}/events", response_class=StreamingResponse)
    async def events() -> StreamingResponse:
        """Changes as server-sent events: ``map``, ``fault``, ``decision``, ``drain``, ``resync``.

        The ``cells`` of a ``map`` event are 32-bit words, little-endian, in base64: the number of a link in
        the upper 24 bits, its byte of the map in the lower 8.
        """
        listening = contextlib.ExitStack()
        queue = listening.enter_context(service.events.listening())

        async def stream() -> AsyncIterator[bytes]:
            with listening:
                yield b": listening\n\n"
                while True:
                    try:
                        event = await asyncio.wait_for(queue.get(), _HEARTBEAT_S)
                    except TimeoutError:
                        yield b": still here\n\n"
                        continue
                    content = json.dumps(event.content, separators=(",", ":"))
                    yield f"id: {event.id}\nevent: {event.kind}\ndata: {content}\n\n".encode()

        return StreamingResponse(stream(), media_type="text/event-stream")

    @app.get("/metrics", response_class=Response)
    async def prometheus() -> Response:
        """Metrics in Prometheus' format."""
        return Response(metrics.text(lambda: metrics.of_controller(service)), media_type=metrics.CONTENT_TYPE)


def _changing(app: FastAPI, service: Service, token: Token | None) -> None:
    @app.post(f"{API}/actions")
    async def act(wanted: model.Request, request: Request) -> model.Outcome:
        """Denies, allows, drains or undrains; needs the operators' token.

        The answer says whether it was done, and if not, why. With ``dry_run`` nothing changes.
        """
        if token is None:
            raise HTTPException(403, "this controller is read-only: it was started without a token")
        if not token.matches(bearer(dict(request.headers.raw))):
            raise HTTPException(401, "changes need the operators' token", {"WWW-Authenticate": "Bearer"})
        return await service.act(wanted)

    @app.get(f"{API}/token")
    async def check(request: Request) -> dict[str, bool]:
        """Whether the token of this request may change something."""
        return {"operator": token is not None and token.matches(bearer(dict(request.headers.raw)))}


def _page(app: FastAPI) -> None:
    folder = resources.files("openmrc.operate") / "page"
    files = {
        each.name: each.read_bytes() for each in folder.iterdir() if each.name.rpartition(".")[2] in _TYPES
    }
    files["colours.css"] = colours.css().encode()

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return Response(files["index.html"], media_type=_TYPES["html"])

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "no such page")
        return Response(files[name], media_type=_TYPES[name.rpartition(".")[2]])


class Guard:
    """Limits of every request, before anything reads it: size, host name; and headers of every answer."""

    def __init__(self, app: FastAPI, reports: Reports, names: frozenset[str] | None) -> None:
        self.app = app
        self._reports = reports
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or answers it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *_HEADERS]
            await send(message)

        headers = dict(scope["headers"])
        if self._names is not None and _name(headers.get(b"host", b"")) not in self._names:
            await JSONResponse({"detail": "this controller has another name"}, 421)(
                scope, receive, with_headers
            )
            return
        if b"content-encoding" in headers:
            await JSONResponse({"detail": "a request is not compressed"}, 415)(scope, receive, with_headers)
            return
        # Read whole before anybody parses it: a request is small.
        body, more = bytearray(), scope["method"] not in ("GET", "HEAD")
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > model.MOST_BODY:
                refusal = JSONResponse({"detail": f"a request has at most {model.MOST_BODY} bytes"}, 413)
                await refusal(scope, receive, with_headers)
                return
        given = False

        async def whole() -> MutableMapping[str, Any]:
            nonlocal given
            if given or scope["method"] in ("GET", "HEAD"):
                return await receive()
            given = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        if scope["path"] == PATH:
            await self._reports(scope, bytes(body), with_headers)
        else:
            await self.app(scope, whole, with_headers)


def _name(host: bytes) -> str:
    text = host.decode("latin-1").strip().lower()
    return text.partition("]")[0] + "]" if text.startswith("[") else text.partition(":")[0]
