"""Makes JSON schemas (2020-12) of Python's types, for the reference of the HTTP API and for outputs of commands.

str, int, float, bool, None, object          their JSON types; `object`: any value
bytes                                        text
list[T], tuple[T, ...], dict[str, T]         array, array, object
tuple[T, U], T | U, Literal[...]             an array of these, anyOf, enum
Annotated[T, "text"]                         with a description
a View, a TypedDict, a dataclass             a reference to its schema, which is collected by name
a dict                                       already a schema
"""

import typing
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NotRequired, Required, Union, get_args, get_origin, is_typeddict

from rewindmq.schemas.views import View, declared_fields

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAIN = {str: "string", bytes: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}
UNIONS = (Union, UnionType)
LINES: Final = "lines"  # the form of an output's values: one a line ...
LIST: Final = "list"  # ... in an array
OBJECT: Final = "object"  # ... or a single one
Form = Literal["lines", "list", "object"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonOutput:
    """A JSON output of a command: the name of its schema, and the type of a value. `when`: the options that make it;
    "": none are needed. Of values a line, the schema is about one line; else it is about the whole output."""

    name: str
    title: str
    of: Callable[["Schemas"], "Schema"]
    form: Form
    when: str = ""

    def document(self) -> "Schema":
        """Return the schema in the form of a file."""
        schemas = Schemas("#/$defs/")
        schema = self.of(schemas)
        schema = {"type": "array", "items": schema} if self.form == LIST else schema
        head = {"$schema": DIALECT, "$id": f"urn:rewindmq:output:{self.name}:1", "title": self.title}
        return head | schema | ({"$defs": dict(sorted(schemas.by_name.items()))} if schemas.by_name else {})


def output(name: str, title: str, kind: object, form: Form = "lines", when: str = "") -> JsonOutput:
    """Return the output of values of a type."""
    return JsonOutput(name=name, title=title, of=lambda schemas: schemas.of(kind), form=form, when=when)


def object_of(properties: "Schema", optional: Collection[str] = (), text: str = "") -> "Schema":
    """Return the schema of an object with these properties."""
    found: Schema = {"type": "object", "properties": properties}
    required = [name for name in properties if name not in optional]
    return found | ({"required": required} if required else {}) | ({"description": text} if text else {})


def name_of(kind: type) -> str:
    """Return the name of a class in a schema document, where an answer is named after its content."""
    return kind.__name__.removesuffix("View")


class Schemas:
    """A maker of schemas that collects the named ones. `place`: where references find them."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._types: dict[str, Any] = {}
        self.by_name: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:
        """Return the schema of a type."""
        origin, inner = get_origin(kind), get_args(kind)
        if isinstance(kind, type) and issubclass(kind, View):
            return self._named(kind, declared_fields(kind))
        if is_typeddict(kind):
            hints = typing.get_type_hints(kind, include_extras=True)
            return self._named(kind, ((name, of, name in kind.__optional_keys__) for name, of in hints.items()))
        if isinstance(kind, type) and is_dataclass(kind):
            hints = typing.get_type_hints(kind, include_extras=True)
            return self._named(kind, ((each.name, hints[each.name], False) for each in fields(kind)))
        if isinstance(kind, dict):
            return kind
        if origin is Annotated:
            return self.of(inner[0]) | {"description": inner[1]}
        if origin in (Required, NotRequired):
            return self.of(inner[0])
        if origin in UNIONS:
            return self._any_of(inner)
        if origin is Literal:
            return {"enum": list(inner)}
        if origin is tuple and inner[-1] is not Ellipsis:
            return {"type": "array", "prefixItems": [self.of(each) for each in inner], "items": False}
        if origin in (list, tuple, Sequence):
            return {"type": "array", "items": self.of(inner[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(inner[1])}
        if kind in (object, Any):
            return {}
        return {"type": PLAIN[kind]}

    def _any_of(self, kinds: tuple[Any, ...]) -> Schema:
        """One of several types. Plain ones are one list of types."""
        schemas = [self.of(kind) for kind in kinds]
        plain = list(dict.fromkeys(each["type"] for each in schemas if each.keys() == {"type"}))
        others = [each for each in schemas if each.keys() != {"type"}]
        if not others:
            return {"type": plain if len(plain) > 1 else plain[0]}
        found = ([{"type": plain if len(plain) > 1 else plain[0]}] if plain else []) + others
        return {"anyOf": found}

    def _named(self, kind: Any, members: Iterable[tuple[str, object, bool]]) -> Schema:
        """Return a reference to a class's schema. Each member: name, type, and True if it may be missing."""
        name = name_of(kind)
        if self._types.setdefault(name, kind) is not kind:
            raise ValueError(f"two types have the name {name}")
        if name not in self.by_name:
            self.by_name[name] = {}  # it may refer to itself
            properties, optional = {}, set()
            for field, of, may_be_missing in members:
                properties[field] = self.of(of)
                optional |= {field} if may_be_missing else set()
            text = " ".join((kind.__doc__ or "").split())
            self.by_name[name] = object_of(properties, optional, text)
        return {"$ref": f"{self._place}{name}"}
