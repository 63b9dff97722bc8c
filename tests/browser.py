"""Pages in the system's Chromium, driven by Playwright, with a record of what they request and report."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
WIDE, PHONE = 1200, 390


class Pages:
    """Open pages in one browser.

    Attributes:
        requests: the address of every request that any of the pages made, in order.
        complaints: every console message, failed request and uncaught exception.
    """

    def __init__(self, browser: Browser) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._browser = browser

    def open(self, url: str, width: int = WIDE) -> Page:
        """Open a page in a window of the given width, and wait until it is loaded."""
        context = self._browser.new_context(viewport={"width": width, "height": 800}, is_mobile=width < 600)
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("requestfailed", lambda request: self.complaints.append(f"{request.url}: {request.failure}"))
        context.on("console", lambda message: self.complaints.append(message.text))
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        page = context.new_page()
        page.goto(url)
        return page

    def close(self) -> None:
        """Close all pages."""
        for context in self._browser.contexts:
            context.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a headless Chromium, and end it afterwards."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()
