"""General properties of the installed package."""

import importlib.metadata
import importlib.resources

import pytest

import openmrc
from openmrc import errors


def test_version_is_the_same_in_core_and_metadata():
    assert openmrc.__version__ == importlib.metadata.version("openmrc")


def test_package_is_marked_as_typed_and_carries_the_stub_of_its_core():
    files = {entry.name for entry in importlib.resources.files(openmrc).iterdir()}
    assert {"py.typed", "_core.pyi"} <= files


BRANCHES = [each for each in vars(errors).values() if isinstance(each, type) and each is not openmrc.Error]


@pytest.mark.parametrize("branch", BRANCHES)
def test_every_exception_is_an_openmrc_error_and_says_when_it_is_raised(branch):
    assert issubclass(branch, openmrc.Error)
    assert branch.__doc__
    assert str(branch("plane 9 of 8")) == "plane 9 of 8"
