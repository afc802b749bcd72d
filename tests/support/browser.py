"""Debian's Chromium, driven by playwright, and the desk in it.

A page notes what no page of the desk may do: dialogs, errors of scripts, and what the content security policy refused.
"""

import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, expect, sync_playwright

from tests.support.needs import needed
from tests.support.running import RunningBroker

SECONDS = 120  # a busy machine starts a view late
MS = SECONDS * 1_000
WIDE, PHONE = (1300, 900), (360, 740)
expect.set_options(timeout=MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium, without a window."""
    chromium = needed("chromium")
    with sync_playwright() as playwright:
        # A container may have a small /dev/shm, and root has no sandbox.
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        started = playwright.chromium.launch(executable_path=chromium, args=options, timeout=MS)
        yield started
        started.close()


@pytest.fixture
def faults() -> list[str]:
    """Return the list that collects the forbidden actions of pages. A test that expects some empties it."""
    return []


@pytest.fixture
def page(browser: Browser, faults: list[str]) -> Iterator[Page]:
    """A page of a browser that is not logged in. After the test it has no fault."""
    context = browser.new_context(viewport={"width": WIDE[0], "height": WIDE[1]})
    made = context.new_page()
    watch(made, faults)
    yield made
    context.close()
    assert faults == []


def watch(page: Page, faults: list[str]) -> None:
    """Note in `faults` what the page may not do."""
    page.set_default_timeout(MS)

    def note_dialog(dialog: Dialog) -> None:
        faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def note_console(message: ConsoleMessage) -> None:
        # A refusal of the API is shown to the user, and Chromium logs it besides.
        refused = message.text.startswith("Failed to load resource: the server responded with a status of")
        if message.type == "error" and not refused:
            faults.append(f"console: {message.text}")

    page.on("dialog", note_dialog)
    page.on("pageerror", lambda error: faults.append(f"script: {error}"))
    page.on("console", note_console)


def log_in(page: Page, broker: RunningBroker, user: str = "guest", password: str = "guest") -> None:
    """Open the desk and log in by its form."""
    page.goto(broker.http_url + "/")
    give(page, user, password)
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


def give(page: Page, user: str, password: str) -> None:
    """Fill in the form of the login, and send it."""
    page.get_by_label("User").fill(user)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def go(page: Page, broker: RunningBroker, address: str) -> None:
    """Show a view of the desk by its address: #/queues."""
    page.goto(f"{broker.http_url}/{address}")


def has_address(page: Page, ending: str) -> None:
    """Wait until the address ends so."""
    expect(page).to_have_url(re.compile(re.escape(ending) + "$"))


def inaccessible(page: Page) -> list[str]:
    """Return axe-core's findings on the page in its current state, by the rules of WCAG 2.2, levels A and AA."""
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    found = Axe().run(page, options={"runOnly": tags, "resultTypes": ["violations"]})
    return [
        f"{each['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for each in found.response["violations"]
        for node in each["nodes"]
    ]
