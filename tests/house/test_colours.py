"""The palette: every eye tells it apart, on light and on dark paper, and pictures have no other colours."""

import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest

from openmrc import colours
from tests.helpers.repository import ROOT

SIGHT = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "without red": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "without green": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
}
"""What is seen of linear RGB; Machado, Oliveira and Fernandes (2009), severity 1."""
FIRST = 8
LEAST_DIFFERENT = 0.04
"""Least distance in OKLab: about twice what two areas side by side need."""


def linear(colour: str) -> tuple[float, ...]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)


def times(matrix: tuple[tuple[float, ...], ...], vector: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)


def oklab(rgb: tuple[float, ...]) -> tuple[float, ...]:
    cones = times(
        (
            (0.4122214708, 0.5363325363, 0.0514459929),
            (0.2119034982, 0.6806995451, 0.1073969566),
            (0.0883024619, 0.2817188376, 0.6299787005),
        ),
        rgb,
    )
    return times(
        (
            (0.2104542553, 0.7936177850, -0.0040720468),
            (1.9779984951, -2.4285922050, 0.4505937099),
            (0.0259040371, 0.7827717662, -0.8086757660),
        ),
        tuple(math.cbrt(max(0.0, cone)) for cone in cones),
    )


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    light = [0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in (linear(one), linear(other))]
    return (max(light) + 0.05) / (min(light) + 0.05)


def least_distance(these: list[str], sight: str) -> float:
    places = [oklab(times(SIGHT[sight], linear(colour))) for colour in these]
    return min(math.dist(a, b) for a, b in itertools.combinations(places, 2))


def of(mode: int, *names: str) -> list[str]:
    return [colours.PALETTE[name][mode] for name in names]


MODES = pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])


@MODES
@pytest.mark.parametrize("sight", SIGHT)
def test_eight_planes_what_failed_and_what_is_impaired_are_told_apart_by_every_eye(
    mode: int, sight: str
) -> None:
    planes = of(mode, *(f"series-{i}" for i in range(FIRST)), "failed", "impaired", "ink", "paper")
    assert least_distance(planes, sight) > LEAST_DIFFERENT


@MODES
def test_sixteen_planes_are_told_apart(mode: int) -> None:
    assert (
        least_distance(of(mode, *(f"series-{i}" for i in range(2 * FIRST)), "failed"), "normal")
        > LEAST_DIFFERENT
    )


def test_colours_that_are_almost_the_same_are_noticed() -> None:
    assert least_distance(["#c8232c", "#cb2a33"], "normal") < LEAST_DIFFERENT
    # Red and olive of the same lightness.
    assert (
        least_distance(["#b04030", "#6e6620"], "normal")
        > LEAST_DIFFERENT
        > least_distance(["#b04030", "#6e6620"], "without green")
    )


@MODES
def test_text_and_curves_stand_out_from_the_paper(mode: int) -> None:
    paper, ink, soft, link, failed = of(mode, "paper", "ink", "soft", "link", "failed")
    assert contrast(ink, paper) > 7
    assert min(contrast(each, paper) for each in (soft, link, failed)) > 4.5
    assert min(contrast(each, paper) for each in of(mode, *(f"series-{i}" for i in range(FIRST)))) > 2.3


def test_a_light_colour_has_one_name() -> None:
    light = [pair[0] for pair in colours.PALETTE.values()]
    assert len(set(light)) == len(light)


def test_no_other_file_has_colours_of_its_own() -> None:
    pattern = re.compile(r"#[0-9a-fA-F]{6}\b")
    files = [
        file
        for ending in ("py", "css", "js", "html", "j2")
        for file in (ROOT / "python/openmrc").rglob(f"*.{ending}")
        if file.name != "colours.py"
    ]
    with_own = {
        file.name: sorted(set(found)) for file in files if (found := pattern.findall(file.read_text()))
    }
    assert with_own == {"pictures.py": ["#79bdee"]}, "between no load and half of it; all others have a name"


def test_an_svg_follows_the_mode_of_the_reader() -> None:
    path = f'<path style="fill: {colours.FAILED}; stroke: #123456"/>'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="1">{path}</svg>'
    changed = colours.adaptive(svg)
    ET.fromstring(changed)
    assert "fill: var(--failed); stroke: #123456" in changed
    light, dark = re.findall(r"--failed: (#\w{6});", changed)
    assert (light, dark) == colours.PALETTE["failed"]
    assert changed.index(light) < changed.index("prefers-color-scheme: dark") < changed.index(dark)
