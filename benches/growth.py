"""A picture: time per packet of the simulator against the number of hosts."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from figures import GROWTH, Repetition
from instruments import NotMeasured


def points(repetitions: Sequence[Repetition]) -> list[tuple[float, float]]:
    """Hosts and median nanoseconds per packet; empty unless every size was measured in every repetition."""
    found = []
    for instrument in GROWTH:
        samples = [each.get(instrument.name) for each in repetitions]
        good = [each for each in samples if each is not None and not isinstance(each, NotMeasured)]
        if not good or len(good) < len(samples):
            return []
        found.append((good[0]["hosts"], median(each["packet_ns"] for each in good)))
    return found


def draw(repetitions: Sequence[Repetition], path: Path) -> bool:
    """Draws the curve into ``path``; returns False if there are no points."""
    curve = points(repetitions)
    if not curve:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.add_subplot()
    hosts, times = zip(*curve, strict=True)
    axes.plot(hosts, times, marker="o", color="tab:blue", label="measured")
    axes.axhline(3 * times[0], color="tab:red", linestyle="--", label="three times the smallest")
    for count, time in curve:
        axes.annotate(f"{time:,.0f}", (count, time), xytext=(0, 8), textcoords="offset points", ha="center")
    axes.set_xscale("log", base=2)
    axes.set_xticks(hosts, [f"{count:,.0f}" for count in hosts])
    axes.minorticks_off()
    axes.set_ylim(0, 3.4 * times[0])
    axes.set_xlabel("hosts (8 planes of 100 Gb/s, permutation of 1 MiB)")
    axes.set_ylabel("time per data packet, ns")
    axes.set_title("Simulator: time per packet against size, one core")
    axes.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=120)
    return True
