"""The display of a training job, and the summary of a run."""

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from openmrc.demos import screen
from openmrc.demos.screen import bar
from openmrc.demos.training.analysis import Figures
from openmrc.demos.training.run import JobReport, Progress
from openmrc.tables import Table

_CURVE = " ▁▂▃▄▅▆▇█"
_CURVE_WIDTH = 60
_NAMES = {
    "undisturbed": "undisturbed",
    "faults": "with faults",
    "gloo": "gloo",
    "gloo faults": "gloo, faults",
}


class Screen(screen.Screen):
    """Every event as a line; the state as a table, or as a line for one step in ten."""

    def progress(self, progress: Progress) -> None:
        """Shows the state of a job."""
        training, step = progress.training, progress.done - 1
        title, line = _title(training), ""
        if progress.event:
            self.log(f"{title:12} step {step:4}  *** {progress.event}")
        elif step % 10 == 0 or step == progress.steps - 1:
            line = (
                f"{title:12} step {step:4} of {progress.steps}  loss {_loss(training, step):.4f}"
                f"  {training.seconds(step) * 1e3:6.0f} ms  {_planes_line(training, step)}"
            )
        self.show(lambda: _table(progress), line)


def _table(progress: Progress) -> RenderableType:
    training, step = progress.training, progress.done - 1
    head = Text.assemble(
        (f"{_title(training):12}", "bold"),
        f" step {step + 1} of {progress.steps}   loss ",
        (f"{_loss(training, step):.4f}", "bold green"),
        f"   {training.seconds(step) * 1e3:.0f} ms a step",
    )
    broken = Text("nothing is broken", "dim")
    if progress.active is not None:
        broken = Text(f"broken: {progress.active.title}", "bold red")
    planes = Grid.grid(padding=(0, 2))
    sent, out = training.plane_bytes(step), training.paths_out(step)
    most = max(sent, default=0) or 1
    for plane, (count, bad) in enumerate(zip(sent, out, strict=True)):
        style = "yellow" if bad else "green"
        planes.add_row(
            f"plane {plane}",
            bar(count / most, style),
            f"{count / 1e6:5.1f} MB",
            Text(f"{bad} paths out of use", style) if bad else Text(""),
        )
    return Group(head, Text(_curve(training), "green"), broken, Text(), planes)


def _title(training: JobReport) -> str:
    return _NAMES.get(training.name, training.name)


def _loss(training: JobReport, step: int) -> float:
    return float.fromhex(training.losses[step])


def _planes_line(training: JobReport, step: int) -> str:
    sent = training.plane_bytes(step)
    if not sent:
        return ""
    out = sum(training.paths_out(step))
    return f"MB by plane {' '.join(f'{count / 1e6:.1f}' for count in sent)}  {out} paths out"


def _curve(training: JobReport) -> str:
    """The losses so far as a line of blocks."""
    losses = [float.fromhex(loss) for loss in training.losses[: training.steps]]
    highest = max(losses)
    shown = losses[:: max(1, -(-len(losses) // _CURVE_WIDTH))]
    return "".join(_CURVE[min(round(loss / highest * 8), 8)] for loss in shown)


def summary(figures: Figures) -> RenderableType:
    """The result of a run, for people."""
    verdict = Text("the loss curve equals the undisturbed run's, bit for bit", "bold green")
    if not figures.same:
        step = figures.first_difference
        where = "the parameters differ at the end" if step is None else f"the losses differ from step {step}"
        verdict = Text(f"NOT the same training: {where}", "bold red")
    kind = "FSDP2" if figures.sharded else "DDP"
    about = (
        f"{figures.parameters / 1e6:.1f} million parameters, {figures.ranks} ranks, {kind},"
        f" {figures.steps} steps, {figures.planes} planes"
    )
    if figures.dropped is not None:
        about += f"; {figures.dropped} packets were dropped on the way"
    jobs = [
        (_NAMES.get(job.name, job.name), job.backend, _ms(job.seconds), f"{job.last_loss:.4f}")
        for job in figures.jobs
    ]
    parts: list[RenderableType] = [
        verdict,
        Text(about),
        Text(),
        Table(("job", "backend", "ms a step", "last loss"), jobs),
    ]
    for job in figures.jobs:
        if not job.faults:
            continue
        rows = [
            (
                fault.title,
                f"{fault.begin} - {fault.end}",
                *map(_ms, (fault.before, fault.during, fault.longest, fault.after)),
            )
            for fault in job.faults
        ]
        head = (f"fault ({job.backend})", "steps", "before", "during", "longest", "after")
        parts += [Text(), Table(head, rows)]
    parts.append(Text("medians of the steps before, during and after a fault, in ms", "dim"))
    if figures.gloo_distance is not None:
        same = (
            "the same losses" if figures.gloo_distance == 0 else f"losses within {figures.gloo_distance:.1e}"
        )
        parts.append(Text(f"gloo: {same}, without faults"))
    if figures.remark:
        parts.append(Text(figures.remark))
    parts += [Text(), Text("what the model writes:", "dim"), Text(figures.sample.strip())]
    return Group(*parts)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f}"
