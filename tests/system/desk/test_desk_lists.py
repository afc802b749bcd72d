"""Lists of the desk: names are text, every page fits a phone (B-30)."""

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import PHONE, go, has_address, log_in
from tests.support.running import RunningBroker

pytestmark = pytest.mark.long

HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a b/c?d#e%2F")
PAGES = (
    ("", "Overview"),
    *((title.lower(), title) for title in ("Queues", "Exchanges", "Bindings", "Connections", "Channels", "Consumers")),
    *((title.lower(), title) for title in ("Policies", "Users", "Permissions", "Vhosts", "Quarantine", "Erasures")),
    ("operator-policies", "Operator policies"),
    ("expired-bodies", "Expired bodies"),
    ("nodes", "Nodes"),
    ("topic-permissions", "Topic permissions"),
    ("user-limits", "Limits of users"),
    ("vhost-limits", "Limits of vhosts"),
)


def test_b30_hostile_names_are_text_on_every_page_and_size(
    page: Page, broker: RunningBroker, api: httpx2.Client
) -> None:
    for name in HOSTILE:
        part = httpx2.URL("http://x").copy_with(params={"x": name}).query.decode()[2:].replace("+", "%20")
        part = part.replace("/", "%2F").replace("?", "%3F")
        assert api.put(f"/vhosts/{part}").is_success
        assert api.put(f"/queues/{part}/{part}", json={"durable": True}).is_success
        assert api.put(
            f"/policies/{part}/{part}", json={"pattern": name[:1], "definition": {"max-length": 9}}
        ).is_success
    log_in(page, broker)
    for size in ((1300, 900), PHONE):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        for way, title in PAGES:
            go(page, broker, f"#/{way}")
            expect(page.get_by_role("heading", level=1)).to_have_text(title)
            expect(page.locator("table").first).to_be_visible()
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, (way, size)
            if way in ("queues", "policies"):
                for name in HOSTILE:
                    expect(page.get_by_role("cell", name=name, exact=True).first).to_be_visible()


def test_b30_a_queue_is_declared_and_deleted_with_a_confirmation(
    page: Page, broker: RunningBroker, api: httpx2.Client
) -> None:
    log_in(page, broker)
    go(page, broker, "#/queues")
    page.get_by_label("Name", exact=True).fill("orders")
    page.get_by_role("button", name="Declare a queue").click()
    expect(page.get_by_role("link", name="orders")).to_have_attribute("href", "#/queues/%2F/orders")
    page.get_by_role("button", name="Delete orders").click()
    page.get_by_role("button", name="Yes").click()
    expect(page.get_by_role("link", name="orders")).to_have_count(0)
    assert api.get("/queues/%2F/orders").status_code == 404


FORMS = (
    ("exchanges", {"Name": "events"}, "Declare an exchange", "/exchanges/%2F/events", "Delete events in vhost /"),
    (
        "bindings",
        {"From exchange": "amq.topic", "Destination": "orders", "Routing key": "a.b"},
        "Bind",
        "/bindings/%2F/e/amq.topic/q/orders/a.b",
        "Delete binding of orders to amq.topic with a.b",
    ),
    (
        "policies",
        {"Name": "short", "Pattern": "^q", "Definition (JSON)": '{"max-length": 9}'},
        "Set a policy",
        "/policies/%2F/short",
        "Delete short in vhost /",
    ),
    (
        "operator-policies",
        {"Name": "least", "Pattern": "^q", "Definition (JSON)": '{"max-length": 9}'},
        "Set an operator policy",
        "/operator-policies/%2F/least",
        "Delete least in vhost /",
    ),
    (
        "users",
        {"Name": "ann", "Password": "secret", "Tags": "management"},
        "Add or change a user",
        "/users/ann",
        "Delete user ann",
    ),
    (
        "permissions",
        {"User": "bob", "Read": "^orders$"},
        "Set permissions",
        "/permissions/%2F/bob",
        "Delete permissions of bob in vhost /",
    ),
    (
        "topic-permissions",
        {"User": "bob", "Exchange": "amq.topic", "Write": "^a"},
        "Set topic permissions",
        "/topic-permissions/%2F/bob",
        "Delete topic permissions of bob for amq.topic in vhost /",
    ),
    ("vhosts", {"Name": "test"}, "Add a vhost", "/vhosts/test", "Delete vhost test with all its queues"),
)


@pytest.mark.parametrize(("way", "fields", "button", "path", "deleted"), FORMS, ids=[form[0] for form in FORMS])
def test_b30_a_form_makes_a_thing_and_its_row_deletes_it(
    page: Page,
    broker: RunningBroker,
    api: httpx2.Client,
    way: str,
    fields: dict[str, str],
    button: str,
    path: str,
    deleted: str,
) -> None:
    assert api.put("/queues/%2F/orders", json={"durable": True}).is_success
    assert api.put("/users/bob", json={"password": "secret", "tags": ""}).is_success
    log_in(page, broker)
    go(page, broker, f"#/{way}")
    form = page.locator("form.change")
    for title, value in fields.items():
        form.get_by_label(title, exact=True).fill(value)
    if "policies" in path:  # it shows first what it would do
        form.get_by_role("button", name="Show what it would do").click()
    page.get_by_role("button", name=button, exact=True).click()
    row = page.get_by_role("button", name=deleted)
    expect(row).to_be_visible()
    assert api.get(path).is_success
    row.click()
    page.get_by_role("button", name="Yes").click()
    expect(row).to_have_count(0)
    assert api.get(path).status_code == 404


@pytest.mark.parametrize(("owner", "name", "limit"), [("Vhost", "/", "max-queues"), ("User", "bob", "max-channels")])
def test_b30_a_limit_is_set_and_taken_back(
    page: Page, broker: RunningBroker, api: httpx2.Client, owner: str, name: str, limit: str
) -> None:
    assert api.put("/users/bob", json={"password": "secret", "tags": ""}).is_success
    log_in(page, broker)
    go(page, broker, f"#/{owner.lower()}-limits")
    form = page.locator("form.change")
    for value in ("1000", "-1"):
        form.get_by_label(owner, exact=True).fill(name)
        form.get_by_label("Limit", exact=True).select_option(limit)
        form.get_by_label("Value", exact=True).fill(value)
        form.get_by_role("button", name="Set a limit").click()
        expect(page.get_by_role("row").filter(has_text=f'"{limit}":{value}')).to_be_visible()
    content = {each[owner.lower()]: each["value"] for each in api.get(f"/{owner.lower()}-limits").json()}
    assert content[name] == {limit: -1}


def test_b30_pages_of_a_list_and_a_page_whose_last_row_goes(
    page: Page, broker: RunningBroker, api: httpx2.Client
) -> None:
    for number in range(101):
        assert api.put(f"/queues/%2F/row{number:03}", json={"durable": True}).is_success
    log_in(page, broker)
    go(page, broker, "#/queues?name=row&sort=name&page=2")
    expect(page.get_by_text("Page 2 of 2")).to_be_visible()
    page.get_by_role("button", name="Previous").click()
    expect(page.get_by_role("link", name="row099")).to_be_visible()
    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Delete row100").click()
    page.get_by_role("button", name="Yes").click()
    expect(page.get_by_role("link", name="row099")).to_be_visible()
    has_address(page, "name=row&sort=name")
    go(page, broker, "#/queues?name=row&sort=name&page=9")
    expect(page.get_by_role("link", name="row000")).to_be_visible()


def test_b30_a_question_is_given_up_for_a_newer_one(page: Page, broker: RunningBroker, api: httpx2.Client) -> None:
    for name in ("late", "newer"):
        assert api.put(f"/queues/%2F/{name}", json={"durable": True}).is_success
    log_in(page, broker)
    go(page, broker, "#/queues")
    expect(page.get_by_role("link", name="late")).to_be_visible()
    page.route("**/api/queues?*name=late*", lambda route: None)  # it is never answered
    with page.expect_request("**/api/queues?*name=late*"):
        page.get_by_label("Name contains").fill("late")
        page.get_by_role("button", name="Filter").click()
    with page.expect_event("requestfailed", lambda request: "name=late" in request.url):
        page.get_by_label("Name contains").fill("newer")
        page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("link", name="late")).to_have_count(0)
    expect(page.get_by_role("link", name="newer")).to_be_visible()


def test_b30_the_nodes_are_listed(page: Page, broker: RunningBroker, api: httpx2.Client) -> None:
    [node] = api.get("/nodes").json()
    log_in(page, broker)
    go(page, broker, "#/nodes")
    row = page.get_by_role("row").filter(has_text=node["name"])
    expect(row.get_by_role("cell", name=f"{node['mem_limit']:,}", exact=True)).to_be_visible()


def test_b30_on_a_phone_the_pages_are_behind_a_button(page: Page, broker: RunningBroker) -> None:
    log_in(page, broker)
    link = page.get_by_role("link", name="Operator policies")
    expect(link).to_be_visible()
    expect(page.get_by_role("button", name="Pages")).to_be_hidden()
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    expect(link).to_be_hidden()
    page.get_by_role("button", name="Pages").click()
    link.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Operator policies")
    expect(link).to_be_hidden()
