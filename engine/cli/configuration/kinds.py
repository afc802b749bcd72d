"""Kinds of values: how a setting is written on a command line, in the environment and in a TOML file.

A value is a text everywhere but in TOML: there a number has no quotes, a flag is true or false, and several values are
an array. What TOML has becomes the text first (`Kind.texts`), so each kind has one parser.
"""

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import click

from rewindmq.engine.host.durations import UNIT_MS, duration_ms, short_ms
from rewindmq.engine.log.settings_file import BadSettings, pair


class WrongType(Exception):
    """TOML has a value of another type; the text names the type that is allowed."""


class ParsedType(click.ParamType):  # type: ignore[type-arg]
    """A value that a function parses. Its ValueError says what is wrong."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def split_envvar_value(self, rv: str) -> list[str]:
        """Split a variable that has several values: one a line, as a value may have blanks."""
        return rv.splitlines()


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of values.

    `allowed` says what a value may be. `toml` has the types of TOML. `several`: a setting may have several values:
    items of an array, lines of the variable, or options. `is_path`: a relative path in a file begins at the file; a URL
    stays as it is."""

    parser: click.ParamType  # type: ignore[type-arg]
    allowed: str
    toml: tuple[type, ...] = (str,)
    several: bool = False
    is_path: bool = False
    is_flag: bool = False

    def texts(self, value: object, base: Path) -> list[str]:
        """Write a value of TOML as it would stand on a command line; `base`: the directory of the file.

        WrongType."""
        values = value if isinstance(value, list) and (self.several or list in self.toml) else [value]
        if not all(type(each) in self.toml for each in values):
            raise WrongType(self.allowed)
        texts = [str(each).lower() if isinstance(each, bool) else str(each) for each in values]
        if self.is_path:
            texts = [each if "://" in each else str(base / each) for each in texts]
        return texts if self.several else [",".join(texts)]

    def parsed(self, texts: list[str]) -> Any:
        """Parse texts, one unless `several`.

        ValueError: the text of a value is not allowed."""
        found = []
        for text in texts:
            try:
                found.append(self.parser.convert(text, None, None))
            except click.BadParameter as error:
                own = isinstance(self.parser, ParsedType | click.Path)
                why = error.format_message().partition(": ")[2] or error.message
                raise ValueError(why if own else f"'{text}' is not {self.allowed}") from None
        return tuple(found) if self.several else found[0]


def whole(least: int, most: int | None = None) -> Kind:
    """Whole numbers of a range."""
    end = f"to {most}" if most is not None else "on"
    return Kind(click.IntRange(least, most), f"a whole number from {least} {end}", (int,))


def choice(*words: str) -> Kind:
    """One of these words."""
    return Kind(click.Choice(words), f"one of {', '.join(words)}")


def parsed(name: str, parse: Callable[[str], Any], allowed: str, *toml: type) -> Kind:
    """Return texts that a function parses."""
    return Kind(ParsedType(name, parse), allowed, (str, *toml))


def _days(text: str) -> int:
    days, rest = divmod(duration_ms(text), UNIT_MS["d"])
    if rest or not days:
        raise ValueError(f"'{text}' is not a number of whole days, such as 30d")
    return days


def _kafka_pair(text: str) -> tuple[str, str]:
    try:
        return pair(text, secrets=False)
    except BadSettings as error:
        raise ValueError(str(error)) from None


def _networks(text: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in _names(text))
    for each in found:
        ip_network(each, strict=False)
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


TEXT = Kind(click.STRING, "a text")
FLAG = Kind(click.BOOL, "true or false", (bool,), is_flag=True)
PORT = whole(1, 65535)
DURATION = parsed("duration", duration_ms, "a duration such as 1h")
MILLISECONDS = parsed("duration", short_ms, "a duration such as 100ms or 1s, or 0", int)
DAYS = parsed("days", _days, "a number of whole days, such as 30d")
NETWORKS = parsed("networks", _networks, "networks or addresses with commas between them, or an array of them", list)
NAMES = parsed("names", _names, "names with commas between them, or an array of names", list)
KAFKA_PAIRS = Kind(ParsedType("pair", _kafka_pair), "an array of KEY=VALUE", (str,), several=True)
FILE = Kind(click.Path(exists=True, dir_okay=False, path_type=Path), "a file that exists", is_path=True)
FILE_OR_DIRECTORY = Kind(click.Path(exists=True, path_type=Path), "a file or directory that exists", is_path=True)
DIRECTORY = Kind(click.Path(file_okay=False, path_type=Path), "a directory", is_path=True)
