"""The display of a training job, a table on a terminal and plain lines elsewhere, and the summary."""

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from openmrc.closing import Closable
from openmrc.demos.training.analysis import Figures
from openmrc.demos.training.run import Progress, Training
from openmrc.tables import Table

_BAR = 24
_CURVE = " ▁▂▃▄▅▆▇█"
_CURVE_WIDTH = 60
_NAMES = {
    "undisturbed": "undisturbed",
    "faults": "with faults",
    "gloo": "gloo",
    "gloo faults": "gloo, faults",
}


class Screen(Closable):
    """Where progress is shown."""

    def progress(self, progress: Progress) -> None:
        """Shows that a step has ended."""
        raise NotImplementedError

    def log(self, what: str) -> None:
        """Shows what happens between the jobs."""
        raise NotImplementedError


class Lines(Screen):
    """Plain lines: every event, and one step in ten."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def progress(self, progress: Progress) -> None:
        """A line per event, and per tenth step."""
        training, step = progress.training, progress.training.steps - 1
        if progress.event:
            self._console.print(f"{_title(training):12} step {step:4}  *** {progress.event}", markup=False)
        if step % 10 == 0 or step == progress.steps - 1:
            self._console.print(
                f"{_title(training):12} step {step:4} of {progress.steps}  loss {_loss(training, step):.4f}"
                f"  {training.seconds(step) * 1e3:6.0f} ms  {_planes_line(training, step)}",
                markup=False,
            )

    def log(self, what: str) -> None:
        """A line."""
        self._console.print(what, markup=False)

    def close(self) -> None:
        """Nothing to end."""


class Moving(Screen):
    """A table that is redrawn several times a second."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._live.start()
        self._events: list[str] = []
        self._name = ""

    def progress(self, progress: Progress) -> None:
        """The table."""
        if progress.training.name != self._name:
            self._name, self._events = progress.training.name, []
        if progress.event:
            self._events.append(f"step {progress.training.steps - 1:4}  {progress.event}")
        self._live.update(self._render(progress))

    def log(self, what: str) -> None:
        """A line in the place of the table."""
        self._live.update(Text(what, "dim"))

    def _render(self, progress: Progress) -> RenderableType:
        training, step = progress.training, progress.training.steps - 1
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
            filled = round(_BAR * count / most)
            style = "yellow" if bad else "green"
            planes.add_row(
                f"plane {plane}",
                Text("━" * filled, style) + Text("━" * (_BAR - filled), "bright_black"),
                f"{count / 1e6:5.1f} MB",
                Text(f"{bad} paths out of use", style) if bad else Text(""),
            )
        events = [Text(event, "yellow") for event in self._events[-4:]]
        return Group(head, Text(_curve(training), "green"), broken, Text(), planes, *events)

    def close(self) -> None:
        """Ends the live display."""
        self._live.stop()


def screen(console: Console) -> Screen:
    """The display that suits the console."""
    return Moving(console) if console.is_terminal else Lines(console)


def _title(training: Training) -> str:
    return _NAMES.get(training.name, training.name)


def _loss(training: Training, step: int) -> float:
    return float.fromhex(training.losses[step])


def _planes_line(training: Training, step: int) -> str:
    sent = training.plane_bytes(step)
    if not sent:
        return ""
    out = sum(training.paths_out(step))
    return f"MB by plane {' '.join(f'{count / 1e6:.1f}' for count in sent)}  {out} paths out"


def _curve(training: Training) -> str:
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
