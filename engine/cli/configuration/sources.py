"""Find the value of each setting: from a flag, the environment, the file, or the default, in this order.

    sources = Sources(flags, os.environ, file)
    values = sources.values()            # ConfigError: one line, with file and line, variable or key

The file is TOML without tables. tomllib knows no lines, so `lines_of_keys` parses the statements one after another.
"""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewindmq.engine.cli.configuration.kinds import WrongType
from rewindmq.engine.cli.configuration.table import SETTINGS, Setting

DEFAULT_FILE = Path("/etc/rewindmq/rewindmq.toml")
FILE_VARIABLE = "REWINDMQ_CONFIG"
MOST_BYTES = 32_768  # of a file
FLAG, DEFAULT = "flag", "default"


class ConfigError(Exception):
    """The configuration cannot be used; the text is one line that says where and why."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value, its texts as they were given, and the place where it was given."""

    value: Any
    texts: tuple[str, ...]
    origin: str

    @property
    def shown(self) -> str:
        """The value as one text; empty: there is none."""
        return ", ".join(self.texts)


class Sources:
    """The sources of the values. `file` is None if there is no file."""

    def __init__(self, flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> None:
        self._flags = flags
        self._environment = environment
        self.file = file

    @classmethod
    def found(cls, flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> "Sources":
        """Return the sources of a command: `file`, or the file that the environment names, or the usual one."""
        named = file or (Path(name) if (name := environment.get(FILE_VARIABLE)) else None)
        if named is None and _is_there(DEFAULT_FILE):
            named = DEFAULT_FILE
        return cls(flags, environment, named)

    def values(self) -> dict[str, Value]:
        """Find the value of each setting, and read the file again. Raises ConfigError."""
        written = {} if self.file is None else read_file(self.file)
        return {name: self._value(setting, written.get(name)) for name, setting in SETTINGS.items()}

    def _value(self, setting: Setting, written: Value | None) -> Value:
        given = self._flags.get(setting.name)
        if given is not None:
            return Value(given, shown(setting, given), FLAG)
        text = self._environment.get(setting.environment)
        if text:
            texts = text.splitlines() if setting.kind.several else [text]
            try:
                return Value(setting.kind.parsed(texts), tuple(texts), setting.environment)
            except ValueError as error:
                raise ConfigError(f"{setting.environment}: {error}") from None
        return written or default_of(setting)


def _is_there(path: Path) -> bool:
    """Return True if the file exists, or if this user may not see it: reading it then says why it cannot be read."""
    try:
        path.stat()  # not `exists`, which hides every error from Python 3.14 on
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def default_of(setting: Setting) -> Value:
    """Return the value of a setting that nobody gave."""
    if setting.default is None:
        return Value(() if setting.kind.several else None, (), DEFAULT)
    return Value(setting.kind.parsed([setting.default]), (setting.default,), DEFAULT)


def shown(setting: Setting, value: Any) -> tuple[str, ...]:
    """Return the texts of a parsed value, which an option gave."""
    if setting.kind.several:
        return tuple("=".join(each) for each in value)
    if setting.kind.is_flag:
        return (str(value).lower(),)
    return (",".join(value) if isinstance(value, tuple) else str(value),)


def read_file(path: Path) -> dict[str, Value]:
    """Read a configuration file.

    ConfigError names the file, the line and the key."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{path}: the file has more than {MOST_BYTES} bytes")
    try:
        text = data.decode()
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{number}: the file is not UTF-8") from None
    except ValueError as error:  # tomllib.TOMLDecodeError is one, and so is a number of thousands of digits
        what, _, place = str(error).partition(" (at ")
        last = text.rstrip().count("\n") + 1
        at = f":{last}" if place.startswith("end") else place.replace("line ", ":").partition(",")[0]
        raise ConfigError(f"{path}{at}: not valid TOML: {what}") from None
    except RecursionError:
        raise ConfigError(f"{path}: arrays or tables are nested too deeply") from None
    lines = lines_of_keys(text)
    return {key: _written(path, lines[key], key, value) for key, value in document.items()}


def _written(path: Path, line: int, key: str, value: object) -> Value:
    origin = f"{path}:{line}"
    setting = SETTINGS.get(key)
    if setting is None:
        near = difflib.get_close_matches(key.replace("-", "_"), SETTINGS, 1, 0.5)
        hint = f"; do you mean {near[0]}?" if near else ""
        what = "table" if isinstance(value, dict) else "setting"
        raise ConfigError(
            f"{origin}: {key!r} is not a {what} of RewindMQ{hint or '; `rewindmq config` lists the settings'}"
        )
    try:
        texts = setting.kind.texts(value, path.absolute().parent)
        return Value(setting.kind.parsed(texts), tuple(texts), origin)
    except WrongType as error:
        raise ConfigError(f"{origin}: {key} has to be {error}, not {_written_type(value)}") from None
    except ValueError as error:
        raise ConfigError(f"{origin}: {key}: {error}") from None


def _written_type(value: object) -> str:
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a text",
        list: "an array",
        dict: "a table",
    }
    return names.get(type(value), "a time")


def lines_of_keys(text: str) -> dict[str, int]:
    """Return the line on which each key at the top of a valid TOML text stands, and each table's name."""
    lines = text.split("\n")
    found: dict[str, int] = {}
    begin = 0
    for end in range(1, len(lines) + 1):
        try:
            statement = tomllib.loads("\n".join(lines[begin:end]) + "\n")
        except tomllib.TOMLDecodeError:
            continue  # the statement continues
        for key in statement:
            found.setdefault(key, begin + 1)
        begin = end
    return found
