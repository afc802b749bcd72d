"""JSON schemas (2020-12) of Python's types.

str, int, float, bool, None, object          their JSON types; `object`: any value
list[T], dict[str, T], T | U, Literal[...]   array, object, anyOf, enum
Annotated[T, "text"]                         with a description
a TypedDict                                  a reference to its schema, which is gathered by its name
"""

import typing
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, is_typeddict

Schema = dict[str, Any]

PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null", None: "null"}
UNIONS = (Union, UnionType)


class Schemas:
    """Makes schemas, and gathers those that have a name. `place`: where a reference finds them."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._types: dict[str, Any] = {}
        self.by_name: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """The schema of a type."""
        origin, inner = get_origin(kind), get_args(kind)
        if is_typeddict(kind):
            return self._named(kind)
        if origin is Annotated:
            return self._described(self.of(inner[0]), inner[1])
        if origin in (Required, NotRequired):
            return self.of(inner[0])
        if origin in UNIONS:
            return self._any_of(inner)
        if origin is Literal:
            return {"enum": list(inner)}
        if origin is list:
            return {"type": "array", "items": self.of(inner[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(inner[1])}
        if kind is object:
            return {}
        return {"type": PLAIN[kind]}

    def _described(self, schema: Schema, text: str) -> Schema:
        return schema | {"description": text}

    def _any_of(self, kinds: tuple[Any, ...]) -> Schema:
        """One of several types. Plain ones are one list of types."""
        schemas = [self.of(kind) for kind in kinds]
        plain = [each["type"] for each in schemas if each.keys() == {"type"}]
        others = [each for each in schemas if each.keys() != {"type"}]
        if not others:
            return {"type": plain}
        found = ([{"type": plain if len(plain) > 1 else plain[0]}] if plain else []) + others
        return {"anyOf": found}

    def _named(self, kind: Any) -> Schema:
        """A reference to the schema of a TypedDict."""
        name = kind.__name__
        if self._types.setdefault(name, kind) is not kind:
            raise ValueError(f"two types have the name {name}")
        if name not in self.by_name:
            self.by_name[name] = {}  # it may refer to itself
            fields = typing.get_type_hints(kind, include_extras=True)
            schema: Schema = {"type": "object", "properties": {each: self.of(of) for each, of in fields.items()}}
            required = [each for each in fields if each in kind.__required_keys__]
            if required:
                schema["required"] = required
            if kind.__doc__:
                schema["description"] = " ".join(kind.__doc__.split())
            self.by_name[name] = schema
        return {"$ref": f"{self._place}{name}"}
