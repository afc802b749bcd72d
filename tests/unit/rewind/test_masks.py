"""Messages as `Withheld` leaves them (engine/rewind/masks.py)."""

import json

import pytest

from rewindmq.engine.rewind.masks import MOST_READ, MaskRule, Withheld
from rewindmq.projections.history.properties import headers
from rewindmq.schemas.amqp import properties, tables
from rewindmq.schemas.events import Published
from rewindmq.schemas.metadata_events import PolicySet
from rewindmq.schemas.values import Origin, Route

TABLE = tables.with_length(tables.encode({"token": "abc", "n": 1}, "headers"))
RAW = properties.join_by_name({"headers": TABLE, "message_id": b"\x014"})


def published(body: bytes = b"{}", queues: tuple[str, ...] = ("orders",), raw: bytes = RAW) -> Published:
    return Published(Route("/", "shop", "key", queues), raw, body=body, body_size=len(body))


def masking(*masks: str, pattern: str = "^orders$", apply_to: str = "queues") -> Withheld:
    policy = PolicySet("/", "masks", pattern, json.dumps({"mask": list(masks)}), 0, apply_to)
    return Withheld(rules=(MaskRule.of(policy),))


def seen(withheld: Withheld, message: Published, queue: str | None = None) -> tuple[dict[str, object], bytes]:
    shown = withheld.hide(message, queue)
    assert shown.body_size == message.body_size
    found = headers(shown.properties) or ()
    return {each["key"]: each["value"].decode() for each in found}, shown.body


PLAIN = {"token": "abc", "n": "1"}


def test_nothing_is_withheld_without_a_mask() -> None:
    message = published()
    assert Withheld().hide(message) is message
    assert masking("header.token", pattern="^other$").hide(message) is message
    assert masking("header.absent").hide(message) is message


def test_b82_no_contents() -> None:
    shown = Withheld(contents=True).hide(published(b"secret"))
    assert properties.values(shown.properties)["message_id"] == b"4"
    assert seen(Withheld(contents=True), published(b"secret")) == ({"x-withheld": "headers, body"}, b"")
    damaged = published(raw=b"\xff\xff\xff")
    assert seen(Withheld(contents=True), damaged) == ({"x-withheld": "headers, body"}, b"")


def test_b82_a_header_is_masked() -> None:
    told = {"token": "(masked)", "n": "1", "x-withheld": "headers"}
    assert seen(masking("header.token"), published(b"body")) == (told, b"body")
    assert seen(masking("header.token"), published(raw=b"\xff\xff\xff"))[0] == {
        "token": "(masked)",
        "x-withheld": "headers",
    }


@pytest.mark.parametrize(
    ("mask", "body", "left"),
    [
        ("$.card", {"card": "1", "sum": 2}, {"card": "(masked)", "sum": 2}),
        ("$.card.number", {"card": {"number": 1, "kind": "x"}}, {"card": {"number": "(masked)", "kind": "x"}}),
        (
            "$.items.card",
            {"items": [{"card": 1}, [{"card": None}], 3]},
            {"items": [{"card": "(masked)"}, [{"card": "(masked)"}], 3]},
        ),
        ("$.card", [{"card": 1}, {"sum": 2}], [{"card": "(masked)"}, {"sum": 2}]),
    ],
)
def test_b82_a_part_of_a_json_body_is_masked(mask: str, body: object, left: object) -> None:
    told, shown = seen(masking(mask), published(json.dumps(body).encode()))
    assert (told, json.loads(shown)) == (PLAIN | {"x-withheld": "body"}, left)


@pytest.mark.parametrize(
    "body",
    [
        b"no JSON",
        b"\x1f\x8b\x08",
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
        b"[" * 900 + b"]" * 900,
        b'{"card": "%s"}' % (b"1" * MOST_READ),
        b'{"a": %s}' % (b"1" * 5_000),
    ],
    ids=["text", "gzip", "surrogate", "open", "deep", "long", "number"],
)
def test_b82_a_body_that_cannot_be_looked_into_is_masked(body: bytes) -> None:
    told, shown = seen(masking("$.card"), published(body))
    assert b"1" * 100 not in shown
    assert (told, shown) in ((PLAIN | {"x-withheld": "body"}, b"(masked)"), (PLAIN, body))
    assert shown == b"(masked)" or body.startswith(b"[" * 900 + b"]")  # deep, and JSON without a card


def test_b82_a_name_that_is_there_twice_hides_no_value() -> None:
    body = b'{"card": "1", "card": "2", "a": {"card": "3"}, "a": 4}'
    assert json.loads(seen(masking("$.card"), published(body))[1]) == {"card": "(masked)", "a": 4}
    assert seen(masking("$.a.card"), published(b'{"a": {"card": "3"}, "a": 4}'))[1] == b'{"a":4}'


def test_b82_the_whole_body_is_masked() -> None:
    assert seen(masking("$", "header.n"), published(b'{"card": 1}')) == (
        {"token": "abc", "n": "(masked)", "x-withheld": "headers, body"},
        b"(masked)",
    )
    assert seen(masking("$"), published(b"")) == (PLAIN, b"")


def test_b82_masks_are_those_of_the_places_of_a_message() -> None:
    token = masking("header.token")
    hidden = token.hide(published()).properties
    assert token.hide(published(queues=("copies", "orders"))).properties == hidden
    assert token.hide(published(queues=("copies", "orders")), "copies").properties == RAW
    assert token.hide(published(queues=("dead",)), "orders").properties == hidden
    dead = Published(Route("/", "", "dead", ("dead",)), RAW, origin=Origin("/", "orders", 1, 2, "rejected", 1))
    assert token.hide(dead).properties == hidden
    assert token.hide(published(queues=())).properties == hidden  # no queue took it
    assert token.hide(published(queues=("copies",))).properties == RAW
    both = Withheld(rules=(*token.rules, *masking("header.n", pattern="^o").rules))
    assert seen(both, published())[0] == {"token": "(masked)", "n": "(masked)", "x-withheld": "headers"}


def test_b82_masks_of_an_exchange() -> None:
    shop = masking("header.token", pattern="^shop$", apply_to="exchanges")
    assert seen(shop, published())[0]["token"] == "(masked)"
    assert shop.hide(published(), "shop").properties == shop.hide(published()).properties
    queues = masking("header.token", pattern="^shop$", apply_to="classic_queues")
    assert queues.hide(published()).properties == RAW
    everything = masking("header.token", pattern="^shop$", apply_to="all")
    assert seen(everything, published())[0]["token"] == "(masked)"


def test_b82_the_masks_that_refuse_a_search() -> None:
    withheld = masking("header.token", "$.card")
    assert withheld.in_search("orders") == withheld.in_search(None) == {"header.token", "$.card"}
    assert withheld.in_search("copies") == set()
