"""Takes the picture of `openmrc plan --report` for the reference fabric."""

import subprocess
import sys
from pathlib import Path

import browser


def main(directory: Path) -> None:
    """Writes ``plan-report.png``."""
    report = directory / "plan.html"
    command = [sys.executable, "-m", "openmrc", "plan", "examples/fabrics/reference.yaml", "--report"]
    subprocess.run([*command, str(report)], check=True, stdout=subprocess.DEVNULL)
    with browser.page(1200, 900) as page:
        page.goto(report.as_uri())
        page.screenshot(path=directory / "plan-report.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
