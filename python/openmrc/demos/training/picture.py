"""Loss, time of a step and bytes on each plane, over the steps of the training."""

from pathlib import Path
from typing import TYPE_CHECKING

from openmrc import colours
from openmrc.colours import FAINT
from openmrc.demos.training.run import JobReport, Outcome
from openmrc.pictures import drawing, headline, legend, mark_fault, plain, shade_fault, stack_planes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UNDISTURBED, _OURS = FAINT, colours.series(0)
_HEADROOM = 1.25
"""Height of the loss curve's panel over the highest loss: room for the faults' names."""


def draw(outcome: Outcome, path: Path) -> None:
    """Writes the picture, in the format that the file's extension says (PNG, SVG, PDF).

    Raises:
        PictureError: if matplotlib is not installed.
        OSError: if the file cannot be written.
        ValueError: for a format matplotlib does not know.
    """
    with drawing(path, 9, 6.6) as figure:
        losses, times, planes = figure.subplots(3, 1, sharex=True, height_ratios=[1, 0.8, 0.6])
        _losses(losses, outcome)
        _times(times, outcome)
        _planes(planes, outcome.faults)
        verdict = "the losses equal the undisturbed run's, bit for bit"
        if not outcome.same:
            verdict = "NOT the losses of the undisturbed run"
        ranks = len(outcome.faults.reports)
        title = f"Training on {ranks} ranks while the network fails: {verdict}"
        headline(figure, title, good=outcome.same)
        losses.set_xlim(0, outcome.faults.steps - 1)


def _losses(axes: "Axes", outcome: Outcome) -> None:
    def curve(training: JobReport) -> list[float]:
        return [float.fromhex(loss) for loss in training.losses]

    undisturbed, ours = curve(outcome.undisturbed), curve(outcome.faults)
    axes.plot(undisturbed, color=_UNDISTURBED, linewidth=6, solid_capstyle="round", label="undisturbed")
    axes.plot(ours, color=_OURS, linewidth=1.4, label="with faults")
    axes.set_ylim(0, _HEADROOM * max(ours))
    axes.set_ylabel("loss, nats a byte")
    for number, fault in enumerate(outcome.faults.faults):
        mark_fault(axes, fault.begin, fault.end, fault.title, row=number)
    legend(axes)
    plain(axes)


def _times(axes: "Axes", outcome: Outcome) -> None:
    def times(training: JobReport) -> list[float]:
        return [training.seconds(step) * 1e3 for step in range(training.steps)]

    jobs = [(outcome.undisturbed, _UNDISTURBED, "undisturbed"), (outcome.faults, _OURS, "with faults")]
    jobs += [
        (each, colour, label)
        for each, colour, label in (
            (outcome.gloo, colours.series(2), "gloo, undisturbed"),
            (outcome.gloo_faults, colours.series(1), "gloo, with faults"),
        )
        if each is not None
    ]
    for training, colour, label in jobs:
        axes.step(range(training.steps), times(training), where="mid", color=colour, linewidth=1, label=label)
    slow = max(max(times(training)[1:]) for training, _, _ in jobs)
    quick = min(training.median_seconds for training, _, _ in jobs) * 1e3
    if slow > 10 * quick:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.1 * slow)
    axes.set_ylabel("ms a step")
    for fault in outcome.faults.faults:
        shade_fault(axes, fault.begin, fault.end)
    legend(axes)
    plain(axes)


def _planes(axes: "Axes", training: JobReport) -> None:
    rows = [training.plane_bytes(step) for step in range(training.steps)]
    count = len(rows[0])
    megabytes = {plane: [row[plane] / 1e6 for row in rows] for plane in range(count)}
    names = [f"plane {plane}" for plane in range(count)]
    stack_planes(axes, range(training.steps), megabytes, labels=names, step="mid")
    axes.set_ylim(0, 1.1 * max(sum(row) for row in rows[1:]) / 1e6)
    axes.set_ylabel("MB sent a step")
    axes.set_xlabel("step")
    for fault in training.faults:
        shade_fault(axes, fault.begin, fault.end, zorder=3)
    legend(axes, reverse=True)
    plain(axes)
