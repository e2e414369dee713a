"""Configurations of a fabric's switches, and their verification; its cables."""

from openmrc.switchconf.devices import with_switch
from openmrc.switchconf.foreign import verify_foreign
from openmrc.switchconf.render import FILES, render, render_switch
from openmrc.switchconf.verify import Problem, Result, verify, written

__all__ = [
    "FILES",
    "Problem",
    "Result",
    "render",
    "render_switch",
    "verify",
    "verify_foreign",
    "with_switch",
    "written",
]
