"""Reports as HTML: they load nothing, every colour follows light and dark, and they fit a telephone."""

import base64
import re
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openmrc import colours, sim
from openmrc.fabric import Fabric, plan
from tests.helpers.repository import ROOT

pytest.importorskip("matplotlib")

CHROMIUM = shutil.which("chromium")
SCENARIO = {
    "topology": {"hosts": 32, "planes": 4, "radix": 16},
    "traffic": [
        {"kind": "permutation", "bytes": 1 << 20},
        {"kind": "incast", "bytes": 1 << 16, "senders": [1, 2, 3], "receiver": 0},
    ],
    "faults": [{"kind": "down", "targets": ["h0:p1"], "at_us": 5, "until_us": 30}],
    "record": {"series": True, "events": True, "links": "all"},
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A report of each kind."""
    directory = tmp_path_factory.mktemp("reports")
    scenario = sim.Scenario.model_validate(SCENARIO)
    files = {name: directory / f"{name}.html" for name in ("run", "comparison")}
    sim.run(scenario).report(files["run"])
    sim.compare(scenario, ["mrc", "uet"]).report(files["comparison"])
    for name in ("lab", "reference"):
        files[f"plan-{name}"] = directory / f"{name}.html"
        plan(Fabric.load(ROOT / "examples" / "fabrics" / f"{name}.yaml")).report(files[f"plan-{name}"])
    return files


@pytest.fixture(params=["run", "comparison", "plan-lab", "plan-reference"])
def report(request: pytest.FixtureRequest, reports: dict[str, Path]) -> Path:
    return reports[request.param]


def images(page: Path) -> list[str]:
    found = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', page.read_text())
    return [base64.b64decode(each).decode() for each in found]


def test_pictures_have_no_colour_but_those_that_follow_the_mode(report: Path) -> None:
    pictures = images(report)
    assert pictures
    own = {pair[which] for pair in colours.PALETTE.values() for which in (0, 1)}
    for svg in pictures:
        ET.fromstring(svg)
        drawn = svg[svg.index("</style>") :]
        # What is left is the scale of the heat map, which is made of pixels.
        assert set(re.findall(r"(?:fill|stroke): (#\w+)", drawn)) == set()
        assert "var(--ink)" in drawn
        assert set(re.findall(r"#[0-9a-f]{6}\b", svg[: svg.index("</style>")])) <= own


def test_the_page_and_its_pictures_load_nothing(report: Path) -> None:
    for text in (report.read_text(), *images(report)):
        for address in re.findall(r"""(?:src|href)="([^"]*)|url\(([^)]*)\)""", text):
            assert "".join(address).startswith(("data:", "#")), address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (Debian: apt install chromium)")
    with playwright.sync_playwright() as started:
        # Chromium's own sandbox refuses root; what it opens is this test's file only.
        it = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield it
        it.close()


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_a_browser_shows_it_light_and_dark_narrow_and_wide(
    browser: Any, report: Path, mode: str, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=mode)
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(report.as_uri())
    paper = colours.PALETTE["paper"][mode == "dark"]
    shown = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert shown == f"rgb({', '.join(str(int(paper[i : i + 2], 16)) for i in (1, 3, 5))})"
    assert page.evaluate("document.documentElement.scrollWidth") == width
    broken = "[...document.images].filter(i => !i.complete || i.naturalWidth == 0).length"
    assert page.evaluate(broken) == 0
    # The corner of a picture has the colour of the page: pictures follow the mode as well.
    corner = page.evaluate(
        """() => {
            const canvas = document.createElement('canvas');
            canvas.width = canvas.height = 4;
            const pen = canvas.getContext('2d');
            pen.drawImage(document.images[0], 0, 0);
            return [...pen.getImageData(1, 1, 1, 1).data].slice(0, 3);
        }"""
    )
    assert "#" + "".join(f"{part:02x}" for part in corner) == paper
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    assert complaints == []
    page.close()
