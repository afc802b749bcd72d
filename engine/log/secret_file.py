"""Reads a file that holds one secret, such as a password."""

from pathlib import Path


class BadSecret(ValueError):
    """The file does not hold a secret; the text names it, and says why."""


def secret_in(file: Path) -> str:
    """Return the secret in a file: its first line.

    Raises BadSecret."""
    try:
        secret = file.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except OSError as error:
        raise BadSecret(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSecret(f"{file}: the file is not UTF-8") from None
    if not secret:
        raise BadSecret(f"{file}: the first line is empty, and has to be the secret")
    return secret
