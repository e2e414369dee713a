"""The attributes of a queue pair in Python are those of the NIC's list: names, defaults, ranges, steps."""

import ast
import dataclasses
import inspect
import itertools
import re

import pytest

from openmrc import _core, verbs
from openmrc.errors import ArgumentError, StateError
from openmrc.handshake import Options
from openmrc.verbs import Device, QpAttr, QpState

NAMES = [field.name for field in dataclasses.fields(QpAttr)]


def meanings() -> dict[str, str]:
    """The documentation of every attribute in the source, without line breaks."""
    body = ast.parse(inspect.getsource(QpAttr)).body[0].body  # type: ignore[attr-defined]
    pairs = itertools.pairwise(body)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairs
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def test_the_dataclass_has_the_attributes_of_the_core_in_its_order() -> None:
    assert list(_core.QP_ATTRIBUTES) == NAMES
    assert list(meanings()) == NAMES
    assert {field.name for field in dataclasses.fields(Options)} <= set(NAMES)


def test_the_documentation_has_the_defaults_of_the_core() -> None:
    without_number = {"access", "keepalive_ms", "ev_profile_id", "cc_profile_id"}
    for name, value in _core.QP_DEFAULTS.items():
        if name in meanings() and name not in without_number:
            assert re.search(rf"[Dd]efault {value}\b", meanings()[name]), name
    for name in without_number - {"access"}:
        assert _core.QP_DEFAULTS[name] == 0
        assert "; 0, the default" in meanings()[name]


def test_the_table_of_steps_is_that_of_the_core() -> None:
    rows = re.findall(r"^ *\|(.*)\|(.*)\|(.*)\|$", QpAttr.__doc__ or "", re.MULTILINE)
    needs: dict[str, set[str]] = {}
    takes: dict[str, set[str]] = {}
    step = ""
    for first, needed, taken in rows[2:]:
        step = first.strip() or step
        needs.setdefault(step, set()).update(re.findall(r"\w+", needed))
        takes.setdefault(step, set()).update(re.findall(r"\w+", taken))
    for step, to in (("INIT to RTR", "RTR"), ("RTR to RTS", "RTS")):
        of_step = {name: rule for name, rule in _core.QP_ATTRIBUTES.items() if rule[1] == to}
        assert needs[step] == {name for name, rule in of_step.items() if rule[2]}
        assert takes[step] == {name for name, rule in of_step.items() if not rule[2]}


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_is_not_allowed_is_refused_in_one_sentence_and_changes_nothing(name: str) -> None:
    allowed, step, _, early = _core.QP_ATTRIBUTES[name]
    wrong: list[object] = [object()]
    numbers = re.fullmatch(r"(\d+) to (\d+)", allowed)
    if numbers:
        least, most = map(int, numbers.groups())
        wrong += [least - 1, most + 1]
    with Device.loopback().open() as context, context.alloc_pd() as pd, context.create_cq(8) as cq:
        qp = pd.create_qp(cq, cq)
        if not early:
            qp.modify(QpState.INIT)
            peer = {"remote": context.addresses, "dest_qp_num": 5, "rq_psn": 0}
            if step == "RTS":
                qp.modify(QpState.RTR, **peer)
        before = qp.query()
        to = QpState.INIT if early else QpState[step]
        others = {} if early else peer if step == "RTR" else {"sq_psn": 0}
        for value in wrong:
            with pytest.raises(ArgumentError) as refused:
                qp.modify(to, **{**others, name: value})
            assert str(refused.value).startswith(f"{name} is {value!r}: {allowed}")
            assert qp.query() == before
        qp.close()


def test_an_attribute_that_comes_too_early_is_refused() -> None:
    with Device.loopback().open() as context, context.alloc_pd() as pd, context.create_cq(8) as cq:
        qp = pd.create_qp(cq, cq)
        for name, (allowed, _, _, early) in _core.QP_ATTRIBUTES.items():
            if not early and allowed[0].isdigit():
                with pytest.raises(StateError, match=f"does not take {name}"):
                    qp.modify(verbs.QpState.INIT, **{name: int(allowed.split()[0])})
        qp.close()
