"""Takes the picture of `openmrc plan --report`: the reference fabric, Debian's Chromium."""

import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main(directory: Path) -> None:
    """Writes ``plan-report.png``."""
    report = directory / "plan.html"
    command = [sys.executable, "-m", "openmrc", "plan", "examples/fabrics/reference.yaml", "--report"]
    subprocess.run([*command, str(report)], check=True, stdout=subprocess.DEVNULL)
    with sync_playwright() as playwright:
        # Chromium's own sandbox refuses root.
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(report.as_uri())
        page.screenshot(path=directory / "plan-report.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
