"""A small fabric that tests of several files take."""

from openmrc.fabric import Fabric, Specification

_SIX_HOSTS = {
    "hosts": 6,
    "nic": {"rate": "200G"},
    "planes": 1,
    "switch": {"radix": 8},
    "tiers": 2,
    "parallel_links": 1,
}


def six_hosts(**changes):
    """A fabric of six hosts, one plane and two tiers, with changes of its specification."""
    return Fabric(Specification.model_validate({**_SIX_HOSTS, **changes}))
