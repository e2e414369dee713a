"""Where agents report: most of a controller's requests by far, so that no framework is in between."""

import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from pydantic import ValidationError

from openmrc.control import Token
from openmrc.control.messages import problem
from openmrc.errors import ArgumentError
from openmrc.operate import model
from openmrc.operate.service import Service
from openmrc.operate.tokens import is_agent

PATH = f"{model.API}/reports"

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Reports:
    """Answers requests to :data:`PATH`: takes a report of an agent; needs the token of its host."""

    def __init__(self, service: Service, token: Token | None) -> None:
        self._service = service
        self._token = token

    async def __call__(self, scope: Scope, body: bytes, send: Send) -> None:
        """Answers a request of ASGI, whose body has been read."""
        status, answer = self.answer(scope, body)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if status == 405:
            headers.append((b"allow", b"POST"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def answer(self, scope: Scope, body: bytes) -> tuple[int, bytes]:
        """Status and JSON of the answer to a request."""
        headers = dict(scope["headers"])
        if scope["method"] != "POST":
            return 405, _detail("a report is a POST")
        if _text(headers, b"content-type").partition(";")[0].strip().lower() != "application/json":
            return 415, _detail("a report is application/json")
        try:
            report = model.Report.model_validate_json(body)
        except ValidationError as error:
            self._service.reports["refused"] += 1
            return 422, _detail(problem(error))
        if self._token is not None and not is_agent(self._token, report.host, bearer(headers)):
            self._service.reports["refused"] += 1
            return 401, _detail(f"this is not the token of {report.host}'s agent")
        if self._token is None and not _is_local(scope.get("client")):
            return 403, _detail("without a token, reports are taken from this machine only")
        try:
            return 200, self._service.take(report).model_dump_json().encode()
        except ArgumentError as error:
            return 422, _detail(str(error))


def described() -> dict[str, Any]:
    """The same for OpenAPI: an item of its paths."""
    return {
        "post": {
            "summary": "Report",
            "description": "Takes a report of an agent; needs the token of its host.",
            "operationId": "report_api_v1_reports_post",
            "requestBody": {"required": True, "content": _content(model.Report)},
            "responses": {"200": {"description": "Successful Response", "content": _content(model.Reply)}},
        }
    }


def _content(of: type[model.Report | model.Reply]) -> dict[str, Any]:
    return {"application/json": {"schema": of.model_json_schema()}}


def bearer(headers: dict[bytes, bytes]) -> str:
    """The token of a request; empty: it has none."""
    kind, _, given = _text(headers, b"authorization").partition(" ")
    return given.strip() if kind.lower() == "bearer" else ""


def _text(headers: dict[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


def _detail(text: str) -> bytes:
    return json.dumps({"detail": text}).encode()


def _is_local(client: tuple[str, int] | None) -> bool:
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False
