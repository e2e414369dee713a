"""The library in somebody else's program: its limit of descriptors, and the numbers that select() needs."""

import resource

import pytest

from tests.helpers.ends import loopback
from tests.helpers.programs import program, run

PORTS = 8
MANY = 8192


def device():
    return f"mrc0={','.join(loopback(PORTS))}"


def test_four_contexts_leave_the_low_descriptors_and_the_limit_alone(tmp_path):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < MANY:
        pytest.skip(f"the hard limit of descriptors is below {MANY}")
    done = run([program(tmp_path, "guest"), str(MANY), "4", "4"], OPENMRC_DEVICES=device())
    assert (done.returncode, done.stderr) == (0, "")


def test_a_limit_that_is_too_low_is_named(tmp_path):
    done = run([program(tmp_path, "guest"), "200", "1", "0"], OPENMRC_DEVICES=device())
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("openmrc: device mrc0: ")
    assert "Too many open files" in line
    assert line.endswith("fewer evs_per_port, or raise_descriptor_limit = true, in OPENMRC_CONFIG help")


def test_the_limit_is_raised_when_that_is_asked_for(tmp_path):
    script = f"""
[[device]]
name = "mrc0"
addresses = {loopback(PORTS)}
raise_descriptor_limit = true
"""
    done = run([program(tmp_path, "guest"), "200", "1", "1"], OPENMRC_DEVICES="", OPENMRC_CONFIG=script)
    assert done.returncode == 1
    assert "after.rlim_cur == limit.rlim_cur" in done.stderr
    assert "opened ==" not in done.stderr
