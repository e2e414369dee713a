"""How ranks meet: several on each of several hosts, and what they say when they cannot."""

import os
import subprocess
import sys
import textwrap

import pytest

from openmrc.errors import DeviceError
from openmrc.planes import Planes
from tests.helpers.labs import carried, counted, needs_root, running
from tests.helpers.planes import address, two_hosts
from tests.helpers.ranks import finish, start

HEAD = """
    import os, socket
    import numpy as np
    from openmrc.collectives import Communicator
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""


def outcome(script, size, **environment):
    return finish(start(script, size, head=HEAD, tail="", **environment))


@needs_root
@pytest.mark.parametrize(
    "addresses",
    ["p0,p1", "{0},{1}", "{0}:0,{1}:0"],
    ids=["interfaces", "addresses", "any port"],
)
def test_two_ranks_on_each_of_two_hosts_with_two_planes(addresses):
    script = """
        import numpy as np, os
        from openmrc.collectives import Communicator
        with Communicator.from_environment(timeout=60) as comm:
            x = np.full(100_000, comm.rank + 1.0)
            comm.all_reduce(x)
            assert (x == 10).all()
            print(comm.local_peers, len(set(comm.device.addresses)), comm.totals()["network_bytes"] > 0)
    """
    with two_hosts(2) as hosts:
        processes = []
        for rank in range(4):
            host = 1 + rank // 2
            planes = addresses.format(address(0, host), address(1, host))
            job = {
                "RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": address(0, 1), "MASTER_PORT": "29555",
                "OPENMRC_ADDRESSES": planes,
            }  # fmt: skip
            inside = ["ip", "netns", "exec", hosts.names[host]]
            command = [*inside, sys.executable, "-c", textwrap.dedent(script)]
            processes.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, **job},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        outs = finish(processes)
    assert [out.split(" ")[0] for out in outs] == ["[1]", "[0]", "[3]", "[2]"]
    assert all(out.split(" ")[1] == "2" for out in outs)
    assert any(out.endswith("True\n") for out in outs)


@needs_root
def test_two_ranks_on_each_of_two_hosts_of_a_lab_use_srv6_on_both_planes(tmp_path):
    script = """
        import numpy as np
        from openmrc.collectives import Communicator
        with Communicator.from_environment(timeout=60) as comm:
            x = np.full(500_000, comm.rank + 1.0)
            comm.all_reduce(x)
            assert (x == 10).all()
            pair = comm.split(comm.rank % 2, comm.rank)  # One rank of each host.
            y = np.full(1000, comm.rank + 1.0)
            pair.all_reduce(y)
            assert (y == (4 if comm.rank % 2 == 0 else 6)).all()
            print(comm.local_peers, comm.device.addresses)
    """
    with running(tmp_path, "ranks", hosts=4, radix=4) as lab:
        hosts = ["h0", "h3"]  # Under different T0s.
        before = counted(lab)
        processes = []
        for rank in range(4):
            job = {
                "RANK": str(rank), "WORLD_SIZE": "4", "MASTER_ADDR": lab.addresses("h0")[0],
                "MASTER_PORT": "29555",
            }  # fmt: skip
            command = lab.command(hosts[rank // 2], [sys.executable, "-c", textwrap.dedent(script)])
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            processes.append(subprocess.Popen(command, env={**os.environ, **job}, **pipes))
        outs = finish(processes)
        used = carried(lab, before, counted(lab))
    assert [out.split(" ")[0] for out in outs] == ["[1]", "[0]", "[3]", "[2]"]
    # Each plane has two T1s. Beside the packets of the ranks, a link carries a few of the kernel's.
    uplinks = {name: counts for name, counts in used.items() if ":up" in name}
    assert len(uplinks) == 8
    assert all(min(counts) > 10 for counts in uplinks.values()), uplinks


def test_a_rank_that_cannot_open_its_planes_is_named_by_all():
    script = """
        if rank == 1:
            os.environ["OPENMRC_ADDRESSES"] = "203.0.113.7"
        try:
            Communicator.from_environment(timeout=60)
        except Exception as error:
            print(type(error).__name__, error)
    """
    outs = outcome(script, 3)
    assert outs[1].startswith("DeviceError"), outs
    assert all("rank 1: " in outs[rank] and "203.0.113.7" in outs[rank] for rank in (0, 2)), outs


def test_a_port_that_a_user_has_chosen_is_not_replaced():
    script = """
        taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        taken.bind(("127.0.0.1", 0))
        os.environ["OPENMRC_ADDRESSES"] = f"127.0.0.1:{taken.getsockname()[1]}"
        try:
            Communicator.from_environment(timeout=60)
        except Exception as error:
            print(type(error).__name__, error)
    """
    [out] = outcome(script, 1)
    assert out.startswith("DeviceError")
    assert "in use" in out


def test_unequal_settings_of_shared_memory_are_named():
    script = """
        os.environ["OPENMRC_SHARED_MEMORY"] = "01"[rank]
        try:
            Communicator.from_environment(timeout=60)
        except Exception as error:
            print(type(error).__name__, error)
    """
    for out in outcome(script, 2):
        assert out.startswith("ArgumentError")
        assert "rank 1 uses shared memory and rank 0" in out


def test_an_address_of_another_host_is_a_device_error_that_names_it():
    with pytest.raises(DeviceError, match=r"192\.0\.2\.1"):
        Planes(addresses=("192.0.2.1:0",)).open_named()


@needs_root
def test_packets_fit_a_loopback_interface_with_a_small_mtu():
    measure = f"{sys.executable} -m openmrc bench-collective all_to_all --loopback --minbytes 1M -n 2 -w 0"
    command = ["unshare", "-n", "sh", "-c", f"ip link set lo mtu 5000 up && {measure}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
