"""Takes the pictures of the controller's page, with simulated hosts."""

import subprocess
import sys
from pathlib import Path

import browser

FAULTS = 2
"""That the page has to show before the picture is taken."""
REFERENCE = "examples/fabrics/reference.yaml"


def main(directory: Path, size: str = "") -> None:
    """Writes ``controller.png``, or ``controller-reference.png`` for the size ``reference``."""
    command = [sys.executable, "-m", "openmrc", "controller", "--simulate", "--port", "0", "--seed", "3"]
    if size:
        command.append(REFERENCE)
    controller = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        address = controller.stdout.readline().strip()
        with browser.page(1400, 900) as page:
            page.set_default_timeout(180_000)
            page.goto(address)
            page.locator("#faults li").nth(FAULTS - 1).wait_for()
            page.locator("#faults .name").first.click()
            page.locator("#link b").wait_for()
            page.screenshot(path=directory / ("controller-reference.png" if size else "controller.png"))
    finally:
        controller.terminate()
        controller.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
