"""Views: objects of JSON whose class says which fields they have, and where each comes from (schemas/views.py)."""

import json
import math
from dataclasses import dataclass
from typing import Annotated

import pytest

from rewindmq.schemas.json_schemas import Schemas
from rewindmq.schemas.json_values import compact_text, json_text
from rewindmq.schemas.views import LEFT_OUT, From, View


@dataclass
class Ship:
    name: str
    tons: float
    flag: str = ""


of_ship = From[[Ship, int]]()


class ShipView(View):
    """A ship."""

    name: str
    kind: str = "ship"
    tons_: float = of_ship(lambda ship, _: ship.tons, name="tons")
    flag: Annotated[str, "Where she is registered"] = of_ship.maybe(lambda ship, _: ship.flag or LEFT_OUT)
    berth: int = LEFT_OUT
    next: "list[ShipView]" = of_ship(lambda ship, count: [ShipView.of(ship, count - 1)] if count else [])


class ListedShipView(ShipView, total=False):
    """A ship in a list."""

    number: int


def fields(view: View) -> object:
    return json.loads(compact_text(view))


def test_fields_are_attributes_constants_and_what_is_made() -> None:
    inner = {"name": "Fram", "kind": "ship", "tons": 402.0, "next": []}
    assert fields(ShipView.of(Ship("Fram", 402.0), 1)) == {**inner, "next": [inner]}
    assert list(ShipView.of(Ship("Fram", 402.0), 0).__dict__) == list(inner), "in the order of the class"


def test_a_field_may_be_missing_or_given() -> None:
    shown = ListedShipView.of(Ship("Fram", 402.0, "no"), 0, number=1, berth=7, name="Gjøa")
    assert (shown.flag, shown.berth, shown.number, shown.name) == ("no", 7, 1, "Gjøa")
    with pytest.raises(AssertionError, match=r"ShipView has no \{.birth.\}"):
        ShipView.of(Ship("Fram", 402.0), 0, birth=7)


def test_the_schema_is_that_of_the_class() -> None:
    schemas = Schemas("#/")
    assert schemas.of(ListedShipView) == {"$ref": "#/ListedShip"}
    found = schemas.by_name["ListedShip"]
    assert found["required"] == ["name", "kind", "tons", "next"]
    assert found["properties"]["flag"] == {"type": "string", "description": "Where she is registered"}
    assert found["properties"]["next"] == {"type": "array", "items": {"$ref": "#/Ship"}}
    assert found["properties"].keys() == {"name", "kind", "tons", "flag", "berth", "next", "number"}


def test_numbers_that_json_does_not_know_are_texts() -> None:
    shown = ShipView.of(Ship("Fram", math.inf), 1)
    for text in (compact_text([shown]), json_text([shown])):
        (found,) = json.loads(text)
        assert (found["tons"], found["next"][0]["tons"]) == ("Infinity", "Infinity")


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="Ship is no JSON"):
        compact_text(Ship("Fram", 402.0))
