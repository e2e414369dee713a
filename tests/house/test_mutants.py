"""The tool that plants faults into Python packages, and its list of accepted survivors."""

from pathlib import Path

from tests.helpers import mutants

SOURCE = '''\
def small(value: int | None, limit=3) -> bool:
    """Whether 1 < 2."""
    if value is None:
        raise ValueError("value - 1")
    return value < limit and not limit
'''


def test_each_operator_constant_and_result_is_a_fault_and_no_text_or_annotation_is():
    faults = list(mutants.faults_of(Path("m.py"), SOURCE))
    assert sorted(fault.name.removeprefix("m.py: small: ") for fault in faults) == [
        "3 -> 4",
        "not limit -> limit",
        "return value < limit and (not limit) -> return None",
        "value < limit -> value <= limit",
        "value < limit and (not limit) -> value < limit or not limit",
        "value is None -> value is not None",
    ]
    assert len({fault.source for fault in faults}) == len(faults)
    assert all("Whether 1 < 2." in fault.source for fault in faults)


def test_each_accepted_survivor_is_still_a_fault_and_has_a_reason():
    source = mutants.ROOT / "python"
    for name, reason in mutants.accepted().items():
        path = Path(name.split(":")[0])
        names = {fault.name for fault in mutants.faults_of(path, (source / path).read_text(encoding="utf-8"))}
        assert name in names, f"{name} is no fault any more: remove its line"
        assert len(reason) > 10, name
