"""What holds for every test: Ctrl-C interrupts, properties have no deadline, simulated runs keep the laws."""

import os
import signal
from contextlib import suppress
from typing import Any

import pytest

from openmrc.sim import Results
from openmrc.sim.results import DROPS


def pytest_configure() -> None:
    """Examples of properties may take long on a busy machine. A shell has what it runs in the background
    ignore Ctrl-C; processes of tests would inherit that."""
    # Devices of tests are not for the agent of the machine.
    os.environ["OPENMRC_AGENT"] = "0"
    # The environment of the tests with torch has no hypothesis.
    with suppress(ImportError):
        from hypothesis import settings

        settings.register_profile("openmrc", deadline=None)
        settings.load_profile("openmrc")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def assert_laws(results: Results) -> None:
    """Nothing comes from nowhere, nothing goes nowhere, no link is faster than itself, PFC drops nothing."""
    t = results.totals
    launched = t["data_packets"] + t["control_packets"]
    dropped = sum(t[name] for name in DROPS)
    assert launched == t["arrived"] + t["stray"] + dropped + t["in_flight"], "packets in = out"
    gone = t["arrived_bytes"] + t["dropped_bytes"] + t["cut_bytes"] + t["in_flight_bytes"]
    assert t["launched_bytes"] == gone, "bytes in = out"
    topology = results.scenario.topology
    for size in results.links.get("bytes", ()):
        # What a port has accepted and not sent yet is on its way.
        at_most = topology.port_rate * t["end_ps"] * 1e-12 / 8 + t["in_flight_bytes"]
        assert size <= at_most, "no link above its rate"
    delivered = sum(
        size
        for size, failed in zip(results.columns["bytes"], results.columns["failed"], strict=True)
        if not failed
    )
    if results.summary().delivered == results.summary().messages and not t["fatal"]:
        skipped = 0 if results.skipped is None else results.skipped.bytes
        assert t["data_bytes"] + skipped >= delivered, "no more arrives than was sent"


@pytest.fixture(autouse=True)
def _laws(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Results.of.__func__  # type: ignore[attr-defined]

    def checked(cls: type[Results], *args: Any, **kwargs: Any) -> Results:
        results: Results = made(cls, *args, **kwargs)
        assert_laws(results)
        return results

    monkeypatch.setattr(Results, "of", classmethod(checked))
