"""Translates settings of Kafka's clients: they are given once, under librdkafka's names (`--kafka-setting`).

The functions and commands read the history by two clients: ours (librdkafka) for offsets, bodies and the metadata log,
and Spark's source, which is Java's. Settings that have another name in Java are translated. A setting without a
counterpart there is refused and not left out: half of a job would run without it. `format("rewindmq")` reads by our
client alone (`for_librdkafka`).

    security.protocol, sasl.mechanism                     the same
    sasl.username, sasl.password                          sasl.jaas.config (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512)
    sasl.oauthbearer.client.id, .client.secret, .scope    sasl.jaas.config (OAUTHBEARER)
    sasl.oauthbearer.token.endpoint.url                   the same
    ssl.ca.location, ssl.ca.pem                           ssl.truststore.certificates
    ssl.certificate.location, .pem; ssl.key.location, .pem   ssl.keystore.certificate.chain, ssl.keystore.key (PKCS #8)
    ssl.key.password                                      the same
    ssl.endpoint.identification.algorithm                 the same, `none` is empty there
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from rewindmq.engine.log.settings_file import BadSettings, pair, read_settings_file
from rewindmq.spark_replay.location.ranges import BadRequest

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
# librdkafka's name without .location or .pem, and Java's two
_PEM = {
    "ssl.ca": ("ssl.truststore.certificates", "ssl.truststore.type"),
    "ssl.certificate": ("ssl.keystore.certificate.chain", "ssl.keystore.type"),
    "ssl.key": ("ssl.keystore.key", "ssl.keystore.type"),
}
# Client credentials: librdkafka's names, and those in Java's sasl.jaas.config
_CREDENTIALS = {
    "sasl.oauthbearer.client.id": "clientId",
    "sasl.oauthbearer.client.secret": "clientSecret",
    "sasl.oauthbearer.scope": "scope",
}
_ENDPOINT = "sasl.oauthbearer.token.endpoint.url"
_TOKENS = "org.apache.kafka.common.security.oauthbearer"
_SASL = (
    *("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"),
    *("sasl.oauthbearer.method", _ENDPOINT, *_CREDENTIALS),
)
# Amazon MSK: the classes of its jar aws-msk-iam-auth
_MSK = {
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}


def read_settings(given: Iterable[str], file: Path | None = None) -> tuple[tuple[str, str], ...]:
    """KEY=VALUE pairs of the command line, over those of a file with one pair a line (# begins a comment).

    Raises BadRequest, also when Spark's client cannot be given the same setting."""
    settings: dict[str, str] = {}
    option = "--kafka-config"
    try:
        settings |= dict(read_settings_file(file)) if file is not None else {}
        option = "--kafka-setting"
        settings |= dict(pair(text, secrets=False) for text in given)
    except BadSettings as error:
        raise BadRequest(f"{option}: {error}") from None
    for_java(settings)
    return tuple(settings.items())


def for_librdkafka(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Options of the data source, `kafka.` and librdkafka's name, without that prefix.

    Here, unlike on the command line, settings that Java lacks are allowed: the data source reads by our client alone,
    in the planning and in the tasks. Raises BadRequest, which never shows a value, for settings that the reader itself
    decides: they would change nothing. A setting that librdkafka does not know is a LogError when its client is set
    up."""
    from rewindmq.engine.log.kafka.clients import CONSUMERS_OWN

    settings = {option.removeprefix("kafka."): value for option, value in options.items()}
    fixed = sorted(settings.keys() & CONSUMERS_OWN)
    if fixed:
        raise BadRequest(f"kafka.{fixed[0]} cannot be set: a history is read in one way only")
    return tuple(sorted(settings.items()))


def for_java(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the same settings for Java's client.

    Raises BadRequest, which never shows a value: it may be a secret."""
    found: dict[str, str] = {}
    for key, value in settings.items():
        name, _, kind = key.rpartition(".")
        if key == "security.protocol":
            found[key] = value.upper()
        elif key == "ssl.key.password":
            found[key] = value
        elif key == "ssl.endpoint.identification.algorithm":
            found[key] = "" if value == "none" else value
        elif name in _PEM and kind in ("location", "pem"):
            pem, of_type = _PEM[name]
            found[pem], found[of_type] = (_content(key, value) if kind == "location" else value), "PEM"
        elif key not in _SASL:
            raise BadRequest(f"Kafka's setting {key}: Spark's Kafka client has no such setting that RewindMQ knows")
    return found | _login(settings)


def _login(settings: Mapping[str, str]) -> dict[str, str]:
    if not any(key in settings for key in _SASL):
        return {}
    mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "GSSAPI")).upper()
    if mechanism == _MSK["sasl.mechanism"]:
        return _MSK
    if mechanism == "OAUTHBEARER":
        return _client_credentials(settings)
    module = _LOGIN_MODULES.get(mechanism)
    if module is None:
        known = ", ".join((*_LOGIN_MODULES, "OAUTHBEARER", _MSK["sasl.mechanism"]))
        raise BadRequest(f"Kafka's setting sasl.mechanism: {mechanism} is not one of {known}")
    _require(settings, mechanism, "sasl.username", "sasl.password")
    user, password = (_quoted(settings[key]) for key in ("sasl.username", "sasl.password"))
    login = f"{module} required username={user} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def _client_credentials(settings: Mapping[str, str]) -> dict[str, str]:
    if settings.get("sasl.oauthbearer.method") != "oidc":
        raise BadRequest("Kafka's setting sasl.oauthbearer.method has to be oidc, which OAUTHBEARER needs")
    _require(settings, "OAUTHBEARER", _ENDPOINT, "sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret")
    options = [f"{java}={_quoted(settings[name])}" for name, java in _CREDENTIALS.items() if name in settings]
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{_TOKENS}.OAuthBearerLoginModule required {' '.join(options)};",
        "sasl.login.callback.handler.class": f"{_TOKENS}.OAuthBearerLoginCallbackHandler",
        _ENDPOINT: settings[_ENDPOINT],
    }


def _require(settings: Mapping[str, str], mechanism: str, *names: str) -> None:
    missing = set(names) - settings.keys()
    if missing:
        raise BadRequest(f"Kafka's setting {min(missing)} is missing, which {mechanism} needs")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _content(key: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        raise BadRequest(f"Kafka's setting {key}: {path} cannot be read as PEM") from None
