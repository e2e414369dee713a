"""Takes the picture of the controller's page: simulated hosts, Debian's Chromium."""

import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

FAULTS = 2
"""That the page has to show before the picture is taken."""


def main(directory: Path) -> None:
    """Writes ``controller.png``."""
    command = [sys.executable, "-m", "openmrc", "controller", "--simulate", "--port", "0", "--seed", "3"]
    controller = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        address = controller.stdout.readline().strip()
        with sync_playwright() as playwright:
            # Chromium's own sandbox refuses root.
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.set_default_timeout(180_000)
            page.goto(address)
            page.locator("#faults li").nth(FAULTS - 1).wait_for()
            page.locator("#faults .name").first.click()
            page.locator("#link b").wait_for()
            page.screenshot(path=directory / "controller.png")
            browser.close()
    finally:
        controller.terminate()
        controller.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
