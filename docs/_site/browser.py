"""Debian's Chromium, for pictures of pages."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, sync_playwright


@contextmanager
def page(width: int, height: int) -> Iterator[Page]:
    """Yields an empty page of this size, pixels."""
    with sync_playwright() as playwright:
        # Chromium's own sandbox refuses root.
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": width, "height": height})
        browser.close()
