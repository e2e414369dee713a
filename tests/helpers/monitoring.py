"""Prometheus and Alertmanager of Debian's packages as processes, and a receiver of alerts for tests."""

import contextlib
import http.server
import json
import socket
import subprocess
import threading

import httpx

from tests.helpers.ends import eventually
from tests.helpers.programs import need_tool

PATIENCE_S = 60


@contextlib.contextmanager
def server(directory, arguments, ready):
    """A program that listens on a free port of this machine; yields its address.

    Args:
        directory: For its output.
        arguments: Makes its command line from ``HOST:PORT``.
        ready: Path that answers when it is ready.
    """
    for _ in range(5):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            place = f"127.0.0.1:{probe.getsockname()[1]}"
        log = directory / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen(arguments(place), stdout=output, stderr=output)
        try:
            if _ready(process, f"http://{place}{ready}"):
                yield f"http://{place}"
                return
            # Another program may have taken the port since; another one is tried.
            assert process.poll() is not None, log.read_text()[-2000:]
        finally:
            process.kill()
            process.wait()
    raise AssertionError(log.read_text()[-2000:])


def _ready(process, url):
    """Whether it answers; ``False``: it has ended."""
    eventually(lambda: process.poll() is not None or get(url), PATIENCE_S)
    return process.poll() is None and get(url) is not None


def get(url, **parameters):
    """What an address answers, or ``None``."""
    with contextlib.suppress(httpx.HTTPError):
        answer = httpx.get(url, params=parameters, trust_env=False, timeout=10)
        return answer if answer.is_success else None


def prometheus(directory, configuration):
    """A Prometheus; yields its address."""
    need_tool("prometheus", "prometheus")
    return server(
        directory,
        lambda place: [
            "prometheus",
            f"--config.file={configuration}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={place}",
        ],
        "/-/ready",
    )


def alertmanager(directory):
    """An Alertmanager that tells nobody; yields its address."""
    need_tool("prometheus-alertmanager", "prometheus-alertmanager")
    file = directory / "alertmanager.yaml"
    file.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    return server(
        directory,
        lambda place: [
            "prometheus-alertmanager",
            f"--config.file={file}",
            f"--storage.path={directory / 'alerts'}",
            f"--web.listen-address={place}",
            "--cluster.listen-address=",
        ],
        "/-/ready",
    )


class Receiver:
    """Takes what an Alertmanager would take; answers as the test wants."""

    def __init__(self):
        outer = self
        self.code = 200
        self.requests = []
        """Path and content of each that was answered with success."""
        self.refused = 0
        self.hold = threading.Event()
        self.hold.set()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.hold.wait(PATIENCE_S)
                code = outer.code
                if code == 200:
                    outer.requests.append((self.path, content))
                else:
                    outer.refused += 1
                with contextlib.suppress(OSError):
                    self.send_response(code)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.hold.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def alerts(self):
        """All alerts in the order of their arrival."""
        return [alert for _, content in list(self.requests) for alert in content]
