"""Makes the pictures in docs/images anew: all that this machine can make, or those that are named.

`make gallery` runs it. A picture that needs root or torch is made where these are.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from openmrc.sim import paper

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"


QUICK = {"9c", "14"}
"""Figures of the paper that a test draws again."""


class Picture(NamedTuple):
    """A picture of a page."""

    command: str
    """What makes it: arguments of openmrc, or a script and its arguments, with ``{out}`` for a directory."""
    made: str
    """The file in that directory."""
    root: bool = False
    torch: bool = False
    browser: bool = False
    same: bool = False
    """The same command gives the same picture."""


PICTURES = {
    "planes.png": Picture(
        "simulate examples/scenarios/planes-fail.yaml --pictures {out}", "planes.png", same=True
    ),
    "plan-lab.png": Picture("plan examples/fabrics/lab.yaml --picture {out}/lab.png", "lab.png", same=True),
    "demo.png": Picture("demo --out {out}", "demo.png"),
    "lab-demo.png": Picture("lab demo --out {out}", "lab-demo.png", root=True),
    "train-demo.png": Picture(
        "train-demo --lab --ranks 8 --out {out}", "train-demo.png", root=True, torch=True
    ),
    "plan-report.png": Picture("docs/_site/report.py {out}", "plan-report.png", browser=True),
    **{
        f"published-{name}.png": Picture(
            f"reproduce --figure {name} --out {{out}}/published-{name}.png",
            f"published-{name}.png",
            same=name in QUICK,
        )
        for name in paper.FIGURES
    },
    "controller.png": Picture("docs/_site/page.py {out}", "controller.png", browser=True),
    "controller-reference.png": Picture(
        "docs/_site/page.py {out} reference", "controller-reference.png", browser=True
    ),
}
BY_BENCHMARKS = {"sim-growth.png"}
"""`make bench` draws it from its own measurements."""


def make(name: str, directory: Path) -> Path:
    """Runs the command of a picture and returns the file that it made.

    Raises:
        CalledProcessError: if the command fails.
    """
    picture = PICTURES[name]
    arguments = [each.format(out=directory) for each in picture.command.split()]
    program = [] if arguments[0].endswith(".py") else ["-m", "openmrc"]
    subprocess.run([sys.executable, *program, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return directory / picture.made


def missing(picture: Picture) -> str | None:
    """What this machine lacks to make a picture."""
    if picture.root and os.geteuid() != 0:
        return "root"
    if picture.browser and not (shutil.which("chromium") and importlib.util.find_spec("playwright")):
        return "chromium and playwright"
    return "torch" if picture.torch and importlib.util.find_spec("torch") is None else None


def main(names: list[str]) -> int:
    """Makes the pictures and says which."""
    if unknown := set(names) - set(PICTURES):
        print(
            f"error: no picture {', '.join(sorted(unknown))}; there are {', '.join(PICTURES)}",
            file=sys.stderr,
        )
        return 2
    for name in names or PICTURES:
        if lacking := missing(PICTURES[name]):
            print(f"{name} is left as it is: it needs {lacking}")
            continue
        with tempfile.TemporaryDirectory() as directory:
            shutil.copyfile(make(name, Path(directory)), IMAGES / name)
        print(f"{name} made by openmrc {PICTURES[name].command.replace(' --out {out}', '')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
