"""A browser for tests of the desk: one Chromium for a module, and a login by the form."""

import shutil
from collections.abc import Iterator

import pytest

from tests.support.needs import require
from tests.support.running import RunningBroker

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
require(CHROMIUM, "Chromium is not installed")

from playwright.sync_api import Browser, Page, expect, sync_playwright  # noqa: E402

expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


def log_in(page: Page, broker: RunningBroker, user: str = "guest", password: str = "guest") -> None:
    """Open the desk and log in by the form."""
    page.set_default_timeout(60_000)
    page.goto(broker.http_url)
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("button", name="Log out")).to_be_visible()
