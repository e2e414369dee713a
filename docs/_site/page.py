"""Takes the picture of the controller's page, with simulated hosts."""

import subprocess
import sys
from pathlib import Path

import browser

FAULTS = 2
"""That the page has to show before the picture is taken."""


def main(directory: Path) -> None:
    """Writes ``controller.png``."""
    command = [sys.executable, "-m", "openmrc", "controller", "--simulate", "--port", "0", "--seed", "3"]
    controller = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        address = controller.stdout.readline().strip()
        with browser.page(1400, 900) as page:
            page.set_default_timeout(180_000)
            page.goto(address)
            page.locator("#faults li").nth(FAULTS - 1).wait_for()
            page.locator("#faults .name").first.click()
            page.locator("#link b").wait_for()
            page.screenshot(path=directory / "controller.png")
    finally:
        controller.terminate()
        controller.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
