"""A typed client of a controller, for commands, agents and scripts."""

import json
import os
import ssl
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from openmrc.closing import Closable
from openmrc.control import Token
from openmrc.control.messages import problem
from openmrc.errors import ArgumentError, ConnectError, Error
from openmrc.operate import model
from openmrc.operate.model import API
from openmrc.printable import printable

ENVIRONMENT = "OPENMRC_CONTROLLER"
"""Variable with the controller's address."""
DEFAULT = "http://127.0.0.1:18517"
_MOST_ANSWER = 256 << 20
_MOST_LINE = 16 << 20

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


class RefusedError(Error):
    """The controller does not do what it was asked for."""


class Client(Closable):
    """A connection to a controller. Not for several threads at a time."""

    def __init__(
        self,
        address: str | None = None,
        *,
        bearer: str | None = None,
        authority: Path | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """Does not connect yet.

        Args:
            address: ``http://HOST:PORT`` or ``https://...``; default ``OPENMRC_CONTROLLER``, or this machine.
            bearer: The token, for changes or reports.
            authority: TLS: a file in PEM with the certificates to trust instead of the system's.
            timeout_s: For an answer, seconds.

        Raises:
            ArgumentError: if it is no address, or a token would cross the network in clear.
        """
        self.address = (address or os.environ.get(ENVIRONMENT) or DEFAULT).rstrip("/")
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ArgumentError(
                f"{address or self.address}: a controller's address is http://HOST:PORT or https://..."
            )
        if bearer is not None and parts.scheme == "http" and not _is_loopback(parts.hostname):
            raise ArgumentError(f"{self.address}: a token goes to another machine over https only")
        try:
            verify = ssl.create_default_context(cafile=authority) if parts.scheme == "https" else False
        except (OSError, ssl.SSLError) as error:
            raise ArgumentError(f"{authority}: no certificates ({error})") from None
        # Proxies of the environment are for the world outside, not for a fabric's management network.
        self._http = httpx.Client(
            base_url=self.address,
            headers={} if bearer is None else {"Authorization": f"Bearer {bearer}"},
            timeout=timeout_s,
            verify=verify,
            trust_env=False,
        )

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def status(self) -> model.Status:
        """The fabric in a few figures."""
        return self._get(model.Status, "status")

    def fabric(self) -> model.FabricInfo:
        """The links by number."""
        return self._get(model.FabricInfo, "fabric")

    def names(self, first: int, count: int = 1) -> list[str | None]:
        """Names of links by number, from a number on; ``None``: there is none.

        Args:
            first: The first number.
            count: How many, at most 4,096.
        """
        return self._checked(TypeAdapter(list[str | None]), "names", first=str(first), count=str(count))

    def specification(self) -> str:
        """The fabric's file."""
        return self._ask("GET", "fabric/specification").decode()

    def faults(self, *, over: bool = False) -> list[model.NamedFault]:
        """Open faults, the one that costs most first; or those that are over, the newest first."""
        return self._list(model.NamedFault, "faults", over=str(over).lower())

    def hosts(self) -> list[model.HostInfo]:
        """Hosts that have been heard."""
        return self._list(model.HostInfo, "hosts")

    def jobs(self) -> list[model.JobInfo]:
        """Jobs with their goodput and what named faults cost them."""
        return self._list(model.JobInfo, "jobs")

    def job(self, name: str, seconds: float = 600.0) -> model.JobSeries:
        """The goodput of a job in the last seconds."""
        return self._get(model.JobSeries, "job", name=name, seconds=str(seconds))

    def link(self, name: str) -> model.LinkInfo:
        """A link, by its name or a port, with its history."""
        return self._get(model.LinkInfo, "link", name=name)

    def decisions(self) -> list[model.Outcome]:
        """The audit log, the newest first."""
        return self._list(model.Outcome, "decisions")

    def validate(self, hosts: Iterable[str]) -> model.Validation:
        """Verdicts for the hosts of a job."""
        return self._get(model.Validation, "validate", hosts=",".join(hosts))

    def act(self, request: model.Request) -> model.Outcome:
        """Denies, allows, drains or undrains; the outcome says whether it was done."""
        return _parsed(model.Outcome, self._ask("POST", "actions", request.model_dump_json()))

    def report(self, report: model.Report) -> model.Reply:
        """Reports what an agent has seen."""
        return _parsed(model.Reply, self._ask("POST", "reports", report.model_dump_json()))

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields kind and content of every change from now on, until the controller ends.

        Raises:
            ConnectError: if it cannot be reached.
            RefusedError: if it refuses.
        """
        timeout = httpx.Timeout(10.0, read=30.0)
        try:
            with self._http.stream("GET", f"{API}/events", timeout=timeout) as answer:
                if answer.status_code != 200:
                    raise RefusedError(self._refusal(answer.status_code, answer.read()))
                kind = ""
                for line in answer.iter_lines():
                    if len(line) > _MOST_LINE:
                        raise ConnectError(f"{self.address}: an event is too long")
                    name, _, value = line.partition(": ")
                    if name == "event":
                        kind = value
                    elif name == "data":
                        yield kind, json.loads(value)
        except (httpx.HTTPError, ValueError) as error:
            raise ConnectError(f"{self.address}: {printable(str(error)) or type(error).__name__}") from None

    def _get(self, kind: type[M], path: str, **parameters: str) -> M:
        return _parsed(kind, self._ask("GET", path, **parameters))

    def _list(self, kind: type[M], path: str, **parameters: str) -> list[M]:
        return self._checked(TypeAdapter(list[kind]), path, **parameters)  # type: ignore[valid-type]

    def _checked(self, adapter: TypeAdapter[T], path: str, **parameters: str) -> T:
        try:
            return adapter.validate_json(self._ask("GET", path, **parameters))
        except ValidationError as error:
            raise ConnectError(f"{self.address}: {problem(error)}") from None

    def _ask(self, method: str, path: str, body: str | None = None, **parameters: str) -> bytes:
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            with self._http.stream(
                method, f"{API}/{path}", params=parameters, content=body, headers=headers
            ) as answer:
                found = bytearray()
                for part in answer.iter_bytes():
                    found += part
                    if len(found) > _MOST_ANSWER:
                        raise ConnectError(f"{self.address}: the answer is too long")
        except httpx.ConnectError as error:
            raise ConnectError(
                f"cannot reach the controller at {self.address}: {printable(str(error))}"
            ) from None
        except httpx.HTTPError as error:
            told = printable(str(error)) or type(error).__name__
            raise ConnectError(f"{self.address}: {told}") from None
        if answer.status_code != 200:
            raise RefusedError(self._refusal(answer.status_code, bytes(found)))
        return bytes(found)

    def _refusal(self, code: int, body: bytes) -> str:
        try:
            told = str(json.loads(body)["detail"])
        except (ValueError, KeyError, TypeError):
            told = f"HTTP {code}: is this a controller?"
        return printable(f"{self.address}: {told}")[:500]


def bearer_of(token: Token | None) -> str | None:
    """What a request carries of a token."""
    return None if token is None else token.in_clear()


def _parsed(kind: type[M], body: bytes) -> M:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise ConnectError(f"the controller's answer is malformed: {problem(error)}") from None


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
