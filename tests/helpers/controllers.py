"""Controllers as processes, and reports as agents send them."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from openmrc.control import Token
from openmrc.operate.client import Client
from openmrc.operate.model import Report
from openmrc.operate.tokens import agent_token
from tests.helpers.commands import command

SECRET = "a-token-of-the-tests-0123456789"
TOKEN = Token(SECRET)
BOOT = "0123456789abcdef"


@contextlib.contextmanager
def controller(file, database, *options, token=True):
    """A running controller; yields its address and its process."""
    arguments = ["controller", file, "--port", "0", "--database", database, *options]
    if token:
        secret = file.parent / "token"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        arguments += ["--token-file", secret]
    with command(*arguments) as process:
        address = process.line().strip().rstrip("/")
        if not address:
            process.wait()
            raise AssertionError(process.error_text)
        yield address, process


def operator(address):
    """A client that may change something."""
    return Client(address, bearer=SECRET)


def agent(address, host):
    """A client with the token of a host's agent."""
    return Client(address, bearer=agent_token(TOKEN, host))


def seen(fabric, src, dst, broken=(), **fields):
    """A report of a host that has used every path to another."""
    number = fabric.host(dst)
    paths = list(fabric.paths(src, dst))
    dead = [(number, path.ev) for path in paths if set(broken) & set(path.links)]
    alive = [(number, path.ev) for path in paths if not set(broken) & set(path.links)]
    fields.setdefault("sequence", time.monotonic_ns())
    return Report(host=src, boot=BOOT, dead=dead, alive=alive, devices=1, **fields)


def report_all(address, fabric, pairs, broken=(), **fields):
    """Reports of all these hosts; the replies."""
    replies = []
    for src, dst in pairs:
        with agent(address, src) as client:
            replies.append(client.report(seen(fabric, src, dst, broken, **fields)))
    return replies


@contextlib.contextmanager
def postgresql(directory):
    """A PostgreSQL of Debian's package, as its own user; yields a URL."""
    # Debian keeps the programs of each version in a directory of its own.
    tools = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not tools:
        pytest.skip("postgres is not installed (Debian: apt install postgresql)")
    if os.geteuid() != 0:
        pytest.skip("needs root: PostgreSQL runs as a user of its own")
    data = directory / "postgres"
    data.mkdir()
    shutil.chown(data, "postgres")
    for parent in (directory, *directory.parents):
        if parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o011)
        if parent.name.startswith("pytest-of"):
            break
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def as_postgres(*line):
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *map(str, line)]

    subprocess.run(
        as_postgres(tools[-1] / "initdb", "-D", data / "data", "-A", "trust", "-N"),
        check=True,
        capture_output=True,
        cwd="/",
    )
    options = ["-D", data / "data", "-p", port, "-h", "127.0.0.1", "-k", data, "-F"]
    server = subprocess.Popen(
        as_postgres(tools[-1] / "postgres", *options), stderr=subprocess.DEVNULL, cwd="/"
    )
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres"
    finally:
        server.terminate()
        server.wait(30)
