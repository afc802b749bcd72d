"""The seals of the history in the desk: how far they reach, and that they hold (B-44)."""

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import go, log_in
from tests.support.running import RunningBroker
from tests.support.seals import keys, seal

pytestmark = pytest.mark.long


def test_b44_seals_are_listed_and_verified_with_the_public_key(
    page: Page, broker: RunningBroker, tmp_path: Path
) -> None:
    key, public = keys(tmp_path)
    log_in(page, broker)
    go(page, broker, "#/seals")
    row = page.get_by_role("row").filter(has_text="metadata-0")
    expect(row).to_contain_text("never")
    expect(page.get_by_text("no audit is kept in it")).to_be_visible()
    seal(broker.data, key)
    page.reload()
    expect(row).not_to_contain_text("never")
    verify = page.get_by_role("button", name="Verify metadata-0")
    verify.click()
    expect(page.get_by_text("All 1 seals of metadata-0 hold, up to offset")).to_be_visible()
    expect(page.get_by_text("Signatures were not checked")).to_be_visible()
    page.get_by_label("Public key (PEM)").fill(public)
    verify.click()
    expect(page.get_by_text("Signatures were not checked")).to_have_count(0)
    expect(page.get_by_text("All 1 seals of metadata-0 hold, up to offset")).to_be_visible()
    page.get_by_label("Public key (PEM)").fill("no key")
    verify.click()
    expect(page.get_by_text("not a public key in PEM")).to_be_visible()
