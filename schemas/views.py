"""Views: the JSON objects that a program shows. A class defines their fields, and the source of each.

    of_mark: "From[MarkSet]" = From()

    class MarkView(View):
        '''A moment with a name.'''

        name: str                                                           the attribute of the same name
        time: Time = of_mark(lambda mark: format_time(mark.time_ms))        made from the source
        note: str = of_mark.maybe(lambda mark: mark.note or LEFT_OUT)       some marks do not have it
        state: str = "set"                                                  the same for every mark
        kind: str = LEFT_OUT                                                given to some: of(mark, kind=...)

`MarkView.of(mark)` is a view. Its text is that of its fields (`json_text`), its schema that of its class
(json_schemas.py). A view of several sources has `From[[Queue, Broker]]` and `of(queue, broker)`; attributes are those
of the first. mypy checks the makers of fields against the types of the sources and of the fields.
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast, dataclass_transform, get_type_hints

P = ParamSpec("P")
T = TypeVar("T")

Plan = tuple[tuple[str, Any], ...]
LEFT_OUT: Any = object()  # instead of a value: the object does not have the field


class Made:
    """The default of a field made from the sources. `name`: the field's name in JSON, if Python cannot have it."""

    def __init__(self, how: Callable[..., object] | None, optional: bool, name: str | None) -> None:
        self.how = how
        self.optional = optional
        self.name = name


class From(Generic[P]):
    """A declaration of fields made from sources of these types."""

    def __call__(self, how: Callable[P, T], *, name: str | None = None) -> T:
        """Return a field that every object has."""
        return cast(T, Made(how, False, name))

    def maybe(self, how: Callable[P, T]) -> T:
        """Return a field that is missing if `how` returns LEFT_OUT."""
        return cast(T, Made(how, True, None))


@dataclass_transform(kw_only_default=True, eq_default=False)
class View:
    """An object of JSON. It has the fields that it was made with, in their order; `of` makes them all.

    `optional_names`: fields that some objects lack, besides those declared with `maybe`."""

    optional_names = frozenset[str]()

    def __init__(self, **fields: Any) -> None:
        self.__dict__ = fields

    def __init_subclass__(cls, total: bool = True) -> None:
        """Note the fields. `total`: True if every object has each field of the class itself, as for a TypedDict."""
        if not total:
            cls.optional_names |= frozenset(cls.__annotations__)

    @classmethod
    def of(cls, *sources: Any, **given: Any) -> Self:
        """Return the view of these sources. Fields that are `given` are not made."""
        first, view, left_out = sources[0] if sources else None, cls(), LEFT_OUT
        fields = view.__dict__
        for name, how in _PLANS.get(cls) or _plan_of(cls):
            if name in given:
                fields[name] = given[name]
            elif how is None:
                fields[name] = getattr(first, name)
            elif how is not left_out and (value := how(*sources)) is not left_out:
                fields[name] = value
        assert given.keys() <= fields.keys(), f"{cls.__name__} has no {given.keys() - fields.keys()}"
        return view


_PLANS: dict[type[View], Plan] = {}


def _plan_of(kind: type[View]) -> Plan:
    """Return the fields in order: name in JSON, and its maker; None: an attribute; LEFT_OUT: given."""
    found = []
    for name in get_type_hints(kind):
        default = getattr(kind, name, Made(None, False, None))
        if isinstance(default, Made):
            found.append((default.name or name, default.how))
        else:
            found.append((name, LEFT_OUT if default is LEFT_OUT else _constant(default)))
    return _PLANS.setdefault(kind, tuple(found))


def _constant(value: object) -> Callable[..., object]:
    return lambda *_: value


def declared_fields(kind: type[View]) -> Iterable[tuple[str, object, bool]]:
    """Yield each field: its name in JSON, its type, and True if some objects lack it."""
    for name, of in get_type_hints(kind, include_extras=True).items():
        default, optional = getattr(kind, name, None), name in kind.optional_names
        if isinstance(default, Made):
            yield default.name or name, of, optional or default.optional
        else:
            yield name, of, optional or default is LEFT_OUT
