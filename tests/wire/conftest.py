"""Namespaces for captures."""

import os

import pytest

from openmrc.lab.system import remove, run


@pytest.fixture
def loopback():
    """A namespace with a loopback interface of its own, where nobody else's traffic fills the capture."""
    name = f"test-loopback-{os.getpid()}"
    try:
        run(["ip", "netns", "add", name])
        run(["ip", "-n", name, "link", "set", "lo", "up"])
        yield name
    finally:
        remove([name])
