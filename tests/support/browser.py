"""A real browser for tests of pages: Debian's Chromium without a window, driven by Selenium. Nothing is downloaded.

Tests are skipped where there is no Chromium with its driver (Debian: `apt install chromium chromium-driver`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync",
    "--disable-dev-shm-usage", "--disable-component-update", "--disable-default-apps", "--mute-audio", "--hide-scrollbars",
)  # fmt: skip
WAIT_SECONDS = 60  # for what appears on a page; machines that test are busy


def missing() -> str | None:
    """Return the reason why there is no browser; None if there is one."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        return "no Chromium with its driver on this machine (Debian: apt install chromium chromium-driver)"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "Selenium is not installed"
    return None


def require_browser() -> None:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)


@contextmanager
def browser(width: int = 1280, height: int = 900, *, dark: bool = False) -> Iterator[Any]:
    """Yield a Selenium driver with a window of this size."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser") or ""
    with tempfile.TemporaryDirectory(prefix="millpond-browser-") as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        environment = {**os.environ, "HOME": profile}
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver"), env=environment))
        try:
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            scheme = {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
            yield driver
        finally:
            driver.quit()


def wait(driver: Any, condition: str, *arguments: Any, seconds: float = WAIT_SECONDS) -> Any:
    """Wait until an expression of JavaScript is true, and return its value; an error shows the page's own messages."""
    from selenium.common.exceptions import TimeoutException
    from selenium.webdriver.support.ui import WebDriverWait

    try:
        return WebDriverWait(driver, seconds, 0.1).until(
            lambda page: page.execute_script(f"return ({condition})", *arguments)
        )
    except TimeoutException:
        raise AssertionError(f"never true: {condition}; the page says {messages(driver)}") from None


def messages(driver: Any) -> list[str]:
    """Return errors and warnings of the page since the last call: failed requests, exceptions, refused scripts."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
