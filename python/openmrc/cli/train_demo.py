"""``openmrc train-demo``. Prints; :mod:`openmrc.demos.training` does the work."""

import importlib.util
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from openmrc.cli import _common, _demo
from openmrc.demos.training.analysis import figures
from openmrc.demos.training.faults import MIN_PLANES, MIN_STEPS
from openmrc.demos.training.picture import draw
from openmrc.demos.training.run import Settings, run
from openmrc.demos.training.screen import Screen, summary
from openmrc.errors import Error, UnsupportedError
from openmrc.extras import pip_install

_DEFAULTS = Settings()


def train_demo(
    ranks: Annotated[
        int, typer.Option("--ranks", min=2, max=8, help="Processes that train.")
    ] = _DEFAULTS.ranks,
    steps: Annotated[
        int, typer.Option("--steps", min=MIN_STEPS, help="Steps of the training.")
    ] = _DEFAULTS.steps,
    planes: Annotated[
        int, typer.Option("--planes", metavar="N", min=MIN_PLANES, max=16, help="Planes on loopback.")
    ] = _DEFAULTS.planes,
    fsdp: Annotated[
        bool, typer.Option("--fsdp", help="Shard the parameters (FSDP2) instead of copying them (DDP).")
    ] = False,
    layers: Annotated[
        int, typer.Option("--layers", min=1, max=48, help="Layers of the transformer.")
    ] = _DEFAULTS.layers,
    width: Annotated[
        int, typer.Option("--width", min=16, help="Width of the transformer, a multiple of 4.")
    ] = _DEFAULTS.width,
    batch: Annotated[
        int, typer.Option("--batch", min=1, help="Sequences of 64 bytes per rank and step.")
    ] = _DEFAULTS.batch,
    no_gloo: Annotated[bool, typer.Option("--no-gloo", help="Skip the comparison run over gloo.")] = False,
    lab: Annotated[
        bool,
        typer.Option("--lab", help="Ranks are hosts of a lab: SRv6 switches of the kernel. Needs root."),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="PREFIX",
            help="Write a trace of the undisturbed job for the simulator, to files with this prefix.",
        ),
    ] = None,
    out: _common.DemoOutOption = None,
    no_picture: Annotated[bool, typer.Option("--no-picture", help="Do not draw the losses.")] = False,
    json: _common.JsonOption = False,
) -> None:
    """Train a small transformer with PyTorch while the network fails, and compare every bit of the losses.

    First undisturbed; then a port flaps, paths die silently, paths of a switch stop, and a rank loses a port;
    then over gloo without faults. Everything is sent over planes on loopback, without privileges. The exit
    code is 0 only if losses and parameters equal those of the undisturbed run.
    """
    if importlib.util.find_spec("torch") is None:
        raise UnsupportedError(
            f"the demo trains with PyTorch, which is not installed: {pip_install('torch')}"
        )
    settings = Settings(
        steps=steps,
        fsdp=fsdp,
        layers=layers,
        width=width,
        batch=batch,
        trace=_prefix(trace),
        ranks=ranks,
        planes=planes,
        gloo=not no_gloo,
    )
    # Now, so that what cannot be drawn or written is found before the run.
    drawn = _demo.drawer(draw, wanted=not no_picture)
    with _demo.directory(out, "openmrc-train-demo") as where:
        with Screen(_common.console(stderr=True)) as watch:
            if lab:
                from openmrc.demos.training.lab import run_in_lab

                outcome = run_in_lab(settings, watch.progress, watch.log)
            else:
                outcome = run(settings, watch.progress)
        found = figures(outcome)
        _demo.present(
            found.as_dict(),
            where,
            "train-demo",
            draw=partial(drawn, outcome) if drawn else None,
            summary=partial(summary, found),
            json=json,
        )
    if trace is not None:
        _common.console(stderr=True).print(f"wrote {trace}.0.et to {trace}.{ranks - 1}.et", markup=False)
    if not found.same:
        raise Error("the training differs from the undisturbed one")


def _prefix(trace: Path | None) -> str | None:
    if trace is None:
        return None
    # Now, so that a directory that cannot be made is found before the run.
    trace.parent.mkdir(parents=True, exist_ok=True)
    return str(trace.absolute())
