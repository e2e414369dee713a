"""Addresses of programs that are told something over HTTP: Alertmanagers, receivers of metrics."""

from urllib.parse import urlsplit, urlunsplit

from openmrc.errors import ArgumentError
from openmrc.printable import printable


def checked(url: str, what: str) -> tuple[str, str]:
    """The address without a slash at its end, and as it may be shown: without a password.

    Args:
        url: ``http://HOST:PORT`` or ``https://...``, with a path in front of the interface's own if need be.
        what: Whose address it is, for the message.

    Raises:
        ArgumentError: if it is none.
    """
    parts = urlsplit(url.rstrip("/"))
    try:
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        raise ArgumentError(f"{printable(url)[:200]}: the port is none") from None
    host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
    shown = printable(urlunsplit((parts.scheme, f"{host}{port}", parts.path, "", "")))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ArgumentError(f"{shown[:200]}: {what} address is http://HOST:PORT or https://...")
    return url.rstrip("/"), shown
