"""The options of a device in Python are those of the core's list: names, types, defaults, documentation."""

import dataclasses

import pytest

from openmrc import _core
from openmrc.errors import ArgumentError
from openmrc.verbs import Device, DeviceOptions
from tests.helpers import device_options

NAMES = [field.name for field in dataclasses.fields(DeviceOptions)]


def test_the_module_of_fields_is_written_from_the_core():
    assert device_options.FILE.read_text(encoding="utf-8") == device_options.module(), "run `make docs`"
    assert list(_core.DEVICE_OPTIONS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_option_takes_its_default_and_says_what_it_is(name):
    option = _core.DEVICE_OPTIONS[name]
    Device.loopback(planes=2, **{name: option["default"]})
    assert "default" in option["doc"].lower()


@pytest.mark.parametrize("name", NAMES)
def test_a_value_of_another_type_is_refused_with_what_is_allowed(name):
    with pytest.raises(ArgumentError) as raised:
        Device.loopback(planes=2, **{name: 1 + 2j})
    assert str(raised.value) == f"{name} is (1+2j): {_core.DEVICE_OPTIONS[name]['allowed']} is allowed"
