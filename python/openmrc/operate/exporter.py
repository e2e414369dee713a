"""Metrics over HTTP for a program that serves nothing else, to a limited number of callers at a time."""

import contextlib
import http.server
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

from openmrc.closing import Closable
from openmrc.control.tcp import listen

MOST_CONNECTIONS = 64
"""At a time: one more ends the oldest."""
_TIMEOUT_S = 5.0

_log = logging.getLogger("openmrc.operate")


class _Server(http.server.ThreadingHTTPServer):
    """A connection that says nothing keeps no other waiting."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._connections: list[socket.socket] = []  # The oldest first.
        self._lock = threading.Lock()
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.append(request)
            if len(self._connections) > MOST_CONNECTIONS:
                with contextlib.suppress(OSError):
                    self._connections[0].shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a request for metrics has ended early", exc_info=True)


class Exporter(Closable):
    """Serves ``/metrics``."""

    def __init__(self, bind: str, port: int, collect: Callable[[], bytes], content_type: str) -> None:
        """Begins.

        Args:
            bind: Address to listen on.
            port: TCP port; 0: a free one.
            collect: Makes the metrics, in a thread of the exporter; called once at a time.
            content_type: Their type.

        Raises:
            openmrc.DeviceError: if it cannot listen.
        """
        collecting = threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = _TIMEOUT_S

            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/metrics"
                with collecting:
                    body = collect() if found else b"see /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", content_type if found else "text/plain")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Says nothing of each request."""

        listening = listen(bind, port)
        self.port: int = listening.getsockname()[1]
        self._server = _Server((bind, self.port), Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listening
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="openmrc metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops listening."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
