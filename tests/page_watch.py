"""What a page in a browser does that none of ours may do: errors of scripts and of the console, and requests to other hosts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import ConsoleMessage, Page

LOCAL_SCHEMES = {"about", "blob", "data", "file"}


@dataclass  # without slots: Playwright writes an attribute of its own on whoever listens
class Watch:
    """What the pages of a test did that no page may do; `allowed` are patterns of console errors that the test provokes."""

    allowed: tuple[str, ...] = ()
    offences: list[str] = field(default_factory=list)

    def follow(self, page: Page) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.offences.append(f"a script failed: {error}"))
        page.on("request", lambda request: self._request(request.url))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not any(re.search(pattern, message.text) for pattern in self.allowed):
            self.offences.append(f"the console shows: {message.text}")

    def _request(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in LOCAL_SCHEMES and parts.hostname != "127.0.0.1":
            self.offences.append(f"another host was asked: {url}")
