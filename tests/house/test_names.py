"""What one types first: names of the package, objects in one line, addresses that nobody else has."""

import importlib
import inspect
import re
import subprocess
import sys

import pytest

import openmrc
from openmrc import reference, sim
from openmrc.collectives import Communicator, TcpStore
from openmrc.fabric import Fabric
from openmrc.lab import Lab
from openmrc.lab.state import State
from openmrc.verbs import Device
from tests.helpers.repository import ROOT


def test_a_package_is_there_without_an_import_of_its_own():
    program = "import openmrc; print(openmrc.sim.load, openmrc.verbs.Device)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"sim", "verbs", "localise"} <= set(dir(openmrc))
    for name in openmrc._PACKAGES:
        assert getattr(openmrc, name) is importlib.import_module(f"openmrc.{name}")
    with pytest.raises(AttributeError, match="'openmrc' has no attribute 'simm'"):
        openmrc.simm  # noqa: B018


def test_devices_without_a_number_have_addresses_of_their_own():
    with Device.loopback().open() as one, Device.loopback().open() as two:
        assert not set(one.addresses) & set(two.addresses)
        assert len(one.ports_up()) == 8


def test_objects_are_shown_in_one_line(tmp_path):
    file = tmp_path / "fabric.yaml"
    file.write_text(
        "hosts: 16\nnic: {rate: 200G}\nplanes: 2\nswitch: {radix: 8}\ntiers: 2\nparallel_links: 1\n"
    )
    fabric = Fabric.load(file)
    evs = fabric.ev_set("h0", "h8")
    assert repr(evs) == "<EvSet from h0 to h8: 8 active and 0 backup EVs over 2 planes>"
    with TcpStore("127.0.0.1", 0, serve=True) as store, Communicator(0, 1, store) as alone:
        assert repr(alone) == f"<Communicator {alone.name}: rank 0 of 1>"
        work = alone.barrier(async_op=True)
        assert work is not None
        work.wait()
        assert repr(work) == "<Work done>"
    lab = Lab(fabric, State("sixteen", []))
    assert repr(lab) == "<Lab fabric: 16 hosts, 2 planes, 16 switches>"


def test_what_takes_several_transports_calls_them_so():
    assert list(inspect.signature(sim.compare).parameters)[1] == "transports"


def test_what_a_host_a_nic_and_a_gpu_are_is_said_where_one_plans():
    """In the schema, which editors show, in the reference of fields, on the planner's pages."""
    schema = reference.schema("fabric")["properties"]["hosts"]["description"]
    pages = [
        (ROOT / "docs" / name).read_text() for name in ("fields.md", "fabric.md", "tutorials/planner.md")
    ]
    for text in (schema, *pages):
        words = " ".join(text.split())
        assert re.search(r"eight NICs (in a server, count|counts? as) eight hosts", words), words[:80]
        assert "GPUs" in words
