"""The controller's page on a large fabric, in Debian's Chromium: first paint, updates, frames while panning.

    python benches/page.py                       the reference fabric: 131,072 hosts, 2.1 million links
    python benches/page.py --fabric FABRIC.yaml

A controller with ``--simulate`` runs beside the browser, which draws without a GPU. An update is a link that
an operator denies: from the request to the frame in which its cell has another colour.
"""

import argparse
import contextlib
import itertools
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import processes
from faults import whole
from openmrc.errors import DeviceError, Error, UnsupportedError
from openmrc.fabric import Fabric
from openmrc.files import write_text
from openmrc.operate.client import Client
from openmrc.operate.linkmap import Topology
from openmrc.operate.model import Action, Request
from openmrc.operate.simulated import reporting

REFERENCE = Path(__file__).resolve().parents[1] / "examples/fabrics/reference.yaml"
PATIENCE_MS = 180_000
WAIT_FOR_CHANGE = """
([plane, across, down]) => new Promise((resolve) => {
    const canvas = document.querySelectorAll('.plane canvas')[plane], context = canvas.getContext('2d');
    const at = [across * canvas.width, down * canvas.height].map(Math.floor);
    const colour = () => context.getImageData(...at, 1, 1).data.join();
    const before = colour();
    window.changed = new Promise((done) => {
        const look = () => colour() === before
            ? requestAnimationFrame(look) : done(performance.timeOrigin + performance.now());
        requestAnimationFrame(look);
    });
    resolve();
})
"""
"""Begins to look, at every frame, whether a cell has another colour; ``changed`` has the time."""

COUNT_FRAMES = """
() => {
    window.frames_at = [];
    const frame = (time) => { window.frames_at.push(time); window.counting = requestAnimationFrame(frame); };
    window.counting = requestAnimationFrame(frame);
}
"""


@contextlib.contextmanager
def _controller(file: Path, folder: Path) -> Iterator[tuple[str, str, int]]:
    """A controller of this fabric with hosts that do not exist: address, operators' token, process number."""
    secret = secrets.token_hex(16)
    write_text(folder / "token", secret, permissions=0o600)
    line = [sys.executable, "-m", "openmrc", "controller", str(file), "--simulate", "--port", "0"]
    line += ["--token-file", str(folder / "token")]
    with subprocess.Popen(line, stdout=subprocess.PIPE, cwd=folder) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().decode().partition("#")[0].strip()
            if not address:
                raise DeviceError("the controller did not start")
            yield address.rstrip("/"), secret, process.pid
        finally:
            process.terminate()


def _first_paint(browser: Any, address: str) -> tuple[Any, float]:
    """A page, and the seconds from the request to the frame that shows the map."""
    page = browser.new_context(viewport={"width": 1600, "height": 1000}).new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(address, wait_until="commit")
    shown = page.evaluate(
        """() => new Promise((resolve) => {
            const look = () => {
                const canvas = document.querySelector('.plane canvas');
                const size = canvas ? [canvas.width, canvas.height] : [0, 0];
                const pixels = () => canvas.getContext('2d').getImageData(0, 0, ...size).data;
                if (size[0] > 1 && pixels().some((byte) => byte)) resolve(performance.now());
                else requestAnimationFrame(look);
            };
            requestAnimationFrame(look);
        })"""
    )
    return page, shown / 1000


def _updates(page: Any, client: Client, topology: Topology, count: int) -> list[float]:
    """Seconds from an operator's request to the frame that shows it, by link."""
    found = []
    panels = sorted(topology.panels, key=lambda each: -each.tier)
    for number in range(count):
        plane = number % topology.fabric.planes
        panel = next(each for each in panels if each.plane == plane)
        place = (panel.columns // 3 + 7 * number) % panel.columns + (panel.rows // 2) * panel.columns
        row, column = divmod(place, panel.columns)
        across, down = (column + 0.5) / panel.columns, (row + 0.5) / panel.rows
        if panel.rows > panel.columns:
            across, down = down, across
        canvases = page.locator(".plane canvas").count() // topology.fabric.planes
        page.evaluate(WAIT_FOR_CHANGE, [plane * canvases, across, down])
        began = time.time()
        what = topology.names[panel.first + place]
        assert what is not None
        client.act(Request(action=Action.DENY, what=what, why="to measure", who="bench", force=True))
        found.append(page.evaluate("() => window.changed") / 1000 - began)
    return found


def _frames(page: Any, seconds: float) -> list[float]:
    """Milliseconds between two frames while the map is zoomed and dragged."""
    canvas = page.locator(".plane canvas").first
    page.click("#closer")
    page.click("#closer")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.evaluate(COUNT_FRAMES)
    end, step = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        step += 1
        page.mouse.move(x + 40 * ((step % 20) - 10) / 10, y + 20 * ((step % 14) - 7) / 7)
    page.mouse.up()
    times = page.evaluate("() => { cancelAnimationFrame(window.counting); return window.frames_at; }")
    return [after - before for before, after in itertools.pairwise(times)]


def measure(file: Path, starts: int, updates: int, seconds: float) -> dict[str, float]:
    """What a page of a fabric takes.

    Args:
        file: The fabric's specification.
        starts: Pages that are opened.
        updates: Links that are denied.
        seconds: Of panning.

    Raises:
        UnsupportedError: without Chromium or Playwright.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        raise UnsupportedError("chromium is not installed (Debian: apt install chromium)")
    from playwright.sync_api import sync_playwright

    topology = Topology(Fabric.load(file))
    with (
        tempfile.TemporaryDirectory(prefix="openmrc-page-") as folder,
        _controller(file, Path(folder)) as (address, secret, pid),
        sync_playwright() as started,
        Client(address, bearer=secret) as client,
    ):
        while client.status().hosts_heard < len(reporting(topology.fabric)):
            time.sleep(0.5)
        # Chromium's own sandbox refuses root; what it opens is this controller only.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = started.chromium.launch(executable_path=chromium, args=arguments)
        paints = []
        for _ in range(starts):
            page, paint = _first_paint(browser, address)
            paints.append(paint)
            if len(paints) < starts:
                page.context.close()
        page.wait_for_selector("#live.on")
        late = _updates(page, client, topology, updates)
        gaps = _frames(page, seconds)
        memory = processes.memory(pid) / 1e6
        browser.close()
    return {
        "links": len(topology.links),
        "first paint, s, median": statistics.median(paints),
        "first paint, s, longest": max(paints),
        "update, ms, median": 1000 * statistics.median(late),
        "update, ms, longest": 1000 * max(late),
        "frames a second while panning": 1000 * len(gaps) / sum(gaps),
        "between two frames, ms, 99 %": sorted(gaps)[int(0.99 * len(gaps))],
        "controller, MB": memory,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fabric", type=Path, default=REFERENCE, help="default: the reference fabric")
    parser.add_argument("--starts", type=whole(1, 100), default=5, help="pages that are opened (default 5)")
    parser.add_argument(
        "--updates", type=whole(1, 100), default=20, help="links that are denied (default 20)"
    )
    parser.add_argument("--seconds", type=whole(1, 600), default=5, help="of panning (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    found = measure(given.fabric.resolve(), given.starts, given.updates, given.seconds)
    if given.json:
        print(json.dumps(found, indent=2))
        return
    for what, figure in found.items():
        print(f"{what}: {figure:,.3g}" if figure < 1000 else f"{what}: {figure:,.0f}")


if __name__ == "__main__":
    try:
        main()
    except Error as error:
        sys.exit(f"error: {error}")
