"""Names of hosts in a lab: /etc/netns/NAMESPACE/hosts, which ``ip netns exec`` shows as /etc/hosts.

It never changes the machine's own /etc/hosts.
"""

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from openmrc.errors import DeviceError
from openmrc.files import write_text
from openmrc.lab.layout import Layout, namespace

ROOT = Path("/etc/netns")
"""Where iproute2 looks for files of a namespace (ip-netns(8))."""

_OWN = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"


def hosts_file(layout: Layout) -> str:
    """The file. A host has an address per plane: a connection tries the next one if a plane is dead."""
    lines = [f"{address} {host}" for host in layout.hosts for address in layout.fabric.host_addresses(host)]
    return _OWN + "\n".join(lines) + "\n"


def write(layout: Layout, lab: str) -> None:
    """Makes the names known in every namespace of a lab.

    Raises:
        DeviceError: if a file cannot be written.
    """
    text = hosts_file(layout)
    try:
        for node in layout.nodes:
            directory = ROOT / namespace(lab, node)
            directory.mkdir(parents=True, exist_ok=True)
            write_text(directory / "hosts", text, sync=False)
    except OSError as error:
        reason = os.strerror(error.errno or errno.EIO)
        raise DeviceError(error.errno, f"names of a lab's hosts: {error.filename}: {reason}") from error


def remove(namespaces: Iterable[str]) -> None:
    """Removes what :func:`write` has made; ignores what does not exist."""
    for space in namespaces:
        with suppress(OSError):
            (ROOT / space / "hosts").unlink()
            (ROOT / space).rmdir()
    with suppress(OSError):
        ROOT.rmdir()  # If it is empty.
