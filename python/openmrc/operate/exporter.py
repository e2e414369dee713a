"""Metrics over HTTP for a program that serves nothing else: one thread, one answer at a time."""

import http.server
import threading
from collections.abc import Callable

from openmrc.closing import Closable
from openmrc.control.tcp import listen

_TIMEOUT_S = 5.0


class Exporter(Closable):
    """Serves ``/metrics``."""

    def __init__(self, bind: str, port: int, collect: Callable[[], bytes], content_type: str) -> None:
        """Begins.

        Args:
            bind: Address to listen on.
            port: TCP port; 0: a free one.
            collect: Makes the metrics, in the exporter's thread.
            content_type: Their type.

        Raises:
            openmrc.DeviceError: if it cannot listen.
        """

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = _TIMEOUT_S

            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/metrics"
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
        self._server = http.server.HTTPServer((bind, self.port), Handler, bind_and_activate=False)
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
