"""The library in somebody else's program: its limit of descriptors, and the numbers that select() needs."""

import resource

import pytest

from tests.helpers.ends import loopback
from tests.helpers.io_uring import need_io_uring
from tests.helpers.programs import program, run

PORTS = 8
MANY = 8192


SETTINGS = """
[[device]]
name = "mrc0"
addresses = {addresses}
{option}
"""


def guest(tmp_path, *arguments, option=""):
    settings = SETTINGS.format(addresses=loopback(PORTS), option=option)
    command = [program(tmp_path, "guest"), *map(str, arguments)]
    return run(command, OPENMRC_DEVICES="", OPENMRC_CONFIG=settings)


def test_four_contexts_leave_the_low_descriptors_and_the_limit_alone(tmp_path):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < MANY:
        pytest.skip(f"the hard limit of descriptors is below {MANY}")
    done = guest(tmp_path, MANY, 4, 4, 280, option="io_uring = false")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_context_takes_few_descriptors_where_few_are_to_be_had(tmp_path):
    need_io_uring()
    for limit in (1024, 2048):
        done = guest(tmp_path, limit, 8, 8, 48)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_limit_that_is_too_low_is_named(tmp_path):
    done = guest(tmp_path, 200, 1, 0, 280, option="io_uring = false")
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("openmrc: device mrc0: ")
    assert "Too many open files" in line
    assert line.endswith("raise_descriptor_limit = true or io_uring = true, in OPENMRC_CONFIG help")


def test_the_limit_is_raised_when_that_is_asked_for(tmp_path):
    option = "raise_descriptor_limit = true\nio_uring = false"
    done = guest(tmp_path, 200, 1, 1, 280, option=option)
    assert done.returncode == 1
    assert "after.rlim_cur == limit.rlim_cur" in done.stderr
    assert "opened ==" not in done.stderr
