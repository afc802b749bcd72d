"""Users' settings of Kafka's clients: KEY=VALUE by librdkafka's names, one a line in a file.

    # of the broker                       a line that begins with # is a comment
    security.protocol=SASL_SSL
    sasl.password=...

A secret may be only in such a file, because every user of a machine sees the command lines of all processes, and an
environment and a configuration file are copied to more places than a file of secrets.
"""

from pathlib import Path

SECRETS = ("password", "secret", "jaas.config", ".pem", "private.key", "private.key.pem", "oauthbearer.config")
PUBLIC = ("ssl.ca.pem", "ssl.certificate.pem")


class BadSettings(ValueError):
    """A setting is not acceptable. The text never contains its value, which may be a secret."""


def is_secret(key: str) -> bool:
    """Return True if the value of a setting with this name is a secret."""
    return key.endswith(SECRETS) and key not in PUBLIC


def pair(text: str, secrets: bool) -> tuple[str, str]:
    """Split KEY=VALUE. `secrets`: True if the value may be a secret.

    BadSettings."""
    key, separator, value = text.partition("=")
    key = key.strip()
    if not separator:
        raise BadSettings("the line is not KEY=VALUE" if secrets else f"'{key}' is not KEY=VALUE")
    if not secrets and is_secret(key):
        raise BadSettings(
            f"{key} is a secret, and others see it here: write it into a file, and give that with --kafka-config FILE"
        )
    return key, value.strip()


def read_settings_file(path: Path) -> list[tuple[str, str]]:
    """Read a file of settings.

    BadSettings names the file and the line."""
    return [(key, value) for _, key, value in lines_of(path)]


def lines_of(path: Path) -> list[tuple[int, str, str]]:
    """Read a file of KEY=VALUE; return for each line its number, key and value. BadSettings as `read_settings_file`."""
    found = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BadSettings(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSettings(f"{path}: the file is not UTF-8") from None
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                found.append((number, *pair(line, secrets=True)))
            except BadSettings as error:
                raise BadSettings(f"{path}:{number}: {error}") from None
    return found
