"""The demo in the lab: ranks are hosts, and links and switches fail. Then the same over gloo, BGP and BFD."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from openmrc.collectives.bench import Place
from openmrc.demos.director import Fault
from openmrc.demos.lab import frr
from openmrc.demos.lab.run import demo_lab
from openmrc.demos.lab.scene import RING
from openmrc.demos.training.faults import in_lab
from openmrc.demos.training.job import Job
from openmrc.demos.training.run import JobReport, OnProgress, Outcome, Settings, train_once
from openmrc.demos.training.settings import Backend
from openmrc.lab import Lab, system

_STORE_PORT = "29500"
_INTERFACE = "gloo0"


def run_in_lab(settings: Settings, on_progress: OnProgress, log: Callable[[str], None]) -> Outcome:
    """Brings the lab up, runs all jobs, and takes it down.

    Args:
        settings: What a user chose. Planes are those of the fabric.
        on_progress: Called with the progress.
        log: Called with what happens between the jobs.

    Raises:
        PrivilegeError: without root.
        StateError: if a demo in the lab runs already.
        ArgumentError: if there are too few steps.
        DeviceError: if the kernel or FRR refuses something.
        Error: if a rank fails.
    """
    faults = in_lab(settings.steps)
    hosts = RING[: settings.ranks]
    remark = None
    with demo_lab(log) as lab:

        def train(name: str, backend: Backend, faults: list[Fault]) -> JobReport:
            # Torch's own processes speak to the store over the lab as well.
            master = lab.addresses(hosts[0])[0] if backend == "mrc" else frr.loopback(hosts[0])
            variables = {"MASTER_ADDR": master, "MASTER_PORT": _STORE_PORT}
            if backend == "gloo":
                variables["GLOO_SOCKET_IFNAME"] = _INTERFACE
            places = [Place(system.inside(lab.namespace(host)), variables) for host in hosts]
            return train_once(settings, places, change, on_progress, name, backend, faults)

        def change(_: Job, fault: Fault, down: bool) -> None:
            if down:
                with lab.ready_to_fail(fault.what, loss=fault.loss) as fail:
                    fail()
            else:
                lab.repair(fault.what)

        undisturbed = train("undisturbed", "mrc", [])
        ours = train("faults", "mrc", faults)
        gloo = gloo_faults = None
        missing = frr.why_not() if settings.gloo else None
        if missing:
            remark = f"gloo was left out: {missing}"
        elif settings.gloo:
            timers = frr.Timers()
            log(f"FRR {frr.version()} at {len(lab.layout.nodes)} nodes, {timers.described}")
            with _routed(lab, timers):
                gloo = train("gloo", "gloo", [])
                gloo_faults = train("gloo faults", "gloo", faults)
    return Outcome(settings, undisturbed, ours, gloo, gloo_faults, lab=True, remark=remark)


@contextmanager
def _routed(lab: Lab, timers: frr.Timers) -> Iterator[None]:
    """BGP and BFD run. Hosts send from the address that they announce, which every link leads to."""
    with frr.Routing(lab, timers) as routing:
        for host in lab.layout.hosts:
            commands = [
                # gloo takes an interface that has a carrier: one end of a cable between two ends of one host.
                f"link add {_INTERFACE} type veth peer name {_INTERFACE}-peer",
                f"link set dev {_INTERFACE}-peer up",
                f"link set dev {_INTERFACE} up",
                f"address add {frr.loopback(host)}/128 dev {_INTERFACE} nodad",
            ]
            for link in lab.layout.links_of(host):
                # A deprecated address is no source if there is another one (RFC 6724, rule 3).
                commands.append(
                    f"address change {link.lower.address}/127 dev {link.lower.port} preferred_lft 0"
                )
            system.ip(commands, lab.namespace(host))
        routing.wait_until_complete()
        yield
