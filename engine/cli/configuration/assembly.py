"""Makes the `Config` of a broker from the values of all settings, and refuses values that make no sense together.

A row of the table whose name and value are those of a field of `Config` needs nothing here.
"""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rewindmq.engine.cli.client import HTTP_PORT
from rewindmq.engine.cli.configuration.sources import DEFAULT, FLAG, ConfigError, Value
from rewindmq.engine.cli.configuration.table import SETTINGS
from rewindmq.engine.config import ArchiveConfig, Config, VaultPlace
from rewindmq.engine.host.durations import UNIT_MS
from rewindmq.engine.identity.settings import TokenSettings
from rewindmq.engine.log.secret_file import BadSecret, secret_in
from rewindmq.engine.log.settings_file import BadSettings, lines_of, read_settings_file
from rewindmq.engine.tls import TlsListener

SEGMENT_AGE_MS = UNIT_MS["h"]  # with --archive
LAG_MS = UNIT_MS["m"]
# Of the programs of the stores. No other variable of this process is set from a file.
CREDENTIALS = ("AWS_", "GOOGLE_", "AZURE_")
ELSEWHERE, CHANGES = ("kafka", "load_definitions"), ("archive", "keep_history", "keep_bodies")  # not with --read-only
FIELDS = {field.name for field in fields(Config)}


class Impossible(Exception):
    """Settings make no sense together. `usage`: all of them are flags of the command line."""

    def __init__(self, text: str, usage: bool) -> None:
        super().__init__(text)
        self.usage = usage


class SettingValues:
    """The values of all settings, by name. None stands for a setting without a value."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        return self._values[name].value

    def is_default(self, name: str) -> bool:
        """Return True if nobody gave the setting a value."""
        return self._values[name].origin == DEFAULT

    def given(self, *names: str) -> list[str]:
        """Return the names of those settings that somebody gave a value other than none, false or 0."""
        return [name for name in names if not self.is_default(name) and self._values[name].value]

    def require(self, fine: object, text: str, *names: str) -> None:
        """Refuse these settings unless `fine`.

        Impossible, whose text names the place of each setting that no flag gave."""
        if fine:
            return
        places = {name: self._values[name].origin for name in names}
        elsewhere = [f"{name} at {origin}" for name, origin in places.items() if origin not in (FLAG, DEFAULT)]
        raise Impossible(text + (f" ({', '.join(elsewhere)})" if elsewhere else ""), not elsewhere)


def config_of(values: Mapping[str, Value]) -> Config:
    """Make the configuration of a broker.

    Impossible; ConfigError: a file with a secret cannot be read."""
    given = SettingValues(values)
    require_possible(given)
    same = {name: value.value for name, value in values.items() if name in FIELDS - {"data", "archive", "kafka"}}
    return Config(
        **same
        | {
            "data": given.data.absolute(),
            "http_port": given.http_port or (None if given.https_port else HTTP_PORT),
            "tls": _tls(given),
            "tokens": _tokens(given),
            "archive": _archive(given),
            "keys": None if given.keys is None else given.keys.absolute(),
            "vault": _vault(given),
            "kafka": given.kafka,
            "kafka_settings": kafka_settings(given.kafka_setting, given.kafka_config),
            "node_timeout_ms": given.node_timeout * 1000,
            "consumer_timeout_ms": given.consumer_timeout,
            "keep_history_ms": given.keep_history,
            "find_index_ms": given.find_index,
            "loop_warning_ms": given.loop_warning,
            "commit_interval_ms": given.commit_interval,
            "keep_bodies_days": given.keep_bodies,
            "subject_header": given.subject_header or "",
            "default_pass": _password(given.default_pass_file),
            "leader_pass": _password(given.leader_pass_file, "leader_pass_file"),
        }
    )


def require_possible(given: SettingValues) -> None:
    """Refuse settings that make no sense together. Impossible."""
    require = given.require
    if given.read_only:
        text = "--read-only serves a data directory as it is: without --kafka and --load-definitions"
        require(not given.given(*ELSEWHERE), text, "read_only", *ELSEWHERE)
        require(given.find_index is None, "--read-only writes nothing: without --find-index", "read_only", "find_index")
        text = "--read-only changes nothing: without --archive, --keep-history and --keep-bodies"
        require(not given.given(*CHANGES), text, "read_only", *CHANGES)
    for name in ("archive_lag", "keep_local", "archive_credentials"):
        require(given.archive or not given.given(name), f"{SETTINGS[name].option} needs --archive", name)
    require(given.default_user, "--default-user has to be a name", "default_user")
    text = "--default-user needs --default-pass-file: otherwise its password would be guest, which everybody knows"
    require(given.default_user == "guest" or given.default_pass_file is not None, text, "default_user")
    require(given.kafka != "", "'' is not an address: --kafka HOST:PORT", "kafka")
    require(given.kafka_prefix, "'' is not a prefix: --kafka-prefix", "kafka_prefix")
    for name in ("kafka_prefix", "kafka_config"):
        text = f"{SETTINGS[name].option} needs --kafka"
        require(given.kafka or not given.given(name), text, name)
    require(given.kafka or given.standbys is None, "--standbys needs --kafka", "standbys")
    _require_tls(given)
    _require_tokens(given)
    _require_vault(given)
    if given.kafka is None:
        return
    text = "--confirm-after follower is for an embedded log: Kafka's own replicas confirm here"
    require(given.confirm_after != "follower", text, "confirm_after")
    text = "--keep-bodies has to know the messages of every queue: without --standbys"
    require(given.standbys is None or given.keep_bodies is None, text, "standbys", "keep_bodies")
    text = "--commit-interval is for an embedded log: on Kafka records wait for --kafka-setting linger.ms=MS"
    require(given.is_default("commit_interval"), text, "commit_interval")
    text = "--segment-age is for an embedded log: on Kafka --archive-lag says it all"
    require(given.segment_age is None, text, "segment_age")
    for name in ("subject_header", "keep_bodies"):
        text = f"{SETTINGS[name].option} with --kafka needs --keys DIR, the same directory for all nodes"
        require(not given.given(name) or given.keys is not None, text, name)
    text = (
        "--keep-history with --kafka needs --archive URL: what goes is proven there, and the state with which history"
        " begins then is kept there"
    )
    require(given.keep_history is None or given.archive, text, "keep_history")


def _require_tls(given: SettingValues) -> None:
    require = given.require
    others = [name for name in SETTINGS if name.startswith("tls_") and name != "tls_port"]
    if given.tls_port is None and given.https_port is None:
        require(not given.given(*others), "the --tls- options need --tls-port or --https-port", *others)
        return
    ports = ("tls_port", "https_port")
    pair = given.tls_cert is not None and given.tls_key is not None
    require(pair, "--tls-port and --https-port need --tls-cert and --tls-key", *ports)
    asked = given.given("tls_ca", "tls_verify_peer")
    text = "--tls-ca and --tls-verify-peer need --tls-port: the management API asks for no certificate"
    require(given.tls_port is not None or not asked, text, "tls_ca", "tls_verify_peer")
    require(not given.tls_verify_peer or given.tls_ca, "--tls-verify-peer needs --tls-ca", "tls_verify_peer")
    names = ("tls_fail_if_no_peer_cert", "tls_login_from")
    text = "--tls-fail-if-no-peer-cert and --tls-login-from need --tls-verify-peer"
    require(given.tls_verify_peer or not given.given(*names), text, *names)


def _tls(given: SettingValues) -> TlsListener | None:
    if given.tls_port is None and given.https_port is None:
        return None
    return TlsListener(
        given.tls_port,
        given.tls_cert,
        given.tls_key,
        given.tls_ca,
        given.tls_verify_peer,
        given.tls_fail_if_no_peer_cert,
        given.tls_login_from,
    )


def _require_vault(given: SettingValues) -> None:
    others = [name for name in SETTINGS if name.startswith("vault_")]
    if not given.vault:
        given.require(not given.given(*others), "the --vault- options need --vault", *others)
        return
    given.require(given.vault_token_file, "--vault needs --vault-token-file", "vault")
    text = "--vault needs --subject-header or --keep-bodies: otherwise no body has a key"
    given.require(given.subject_header or given.keep_bodies is not None, text, "vault")


def _vault(given: SettingValues) -> VaultPlace | None:
    if not given.vault:
        return None
    _password(given.vault_token_file, "vault_token_file")
    return VaultPlace(
        given.vault.rstrip("/"),
        given.vault_mount.strip("/"),
        str(given.vault_token_file.absolute()),
        given.vault_namespace or "",
        "" if given.vault_ca is None else str(given.vault_ca.absolute()),
    )


def _require_tokens(given: SettingValues) -> None:
    names = [name for name in SETTINGS if name.startswith("oauth_")]
    if not given.oauth_resource_server_id:
        given.require(not given.given(*names), "the --oauth- options need --oauth-resource-server-id", *names)
        return
    text = "--oauth-resource-server-id needs --oauth-issuer or --oauth-keys: the provider whose tokens are taken"
    given.require(given.oauth_issuer or given.oauth_keys, text, "oauth_resource_server_id")
    text = "--oauth-client-id needs --oauth-issuer: its configuration says where people sign in"
    given.require(given.oauth_issuer or not given.oauth_client_id, text, "oauth_client_id")
    given.require(given.oauth_username_claims, "--oauth-username-claims names no claim", "oauth_username_claims")


def _tokens(given: SettingValues) -> TokenSettings | None:
    if not given.oauth_resource_server_id:
        return None
    return TokenSettings(
        given.oauth_resource_server_id,
        given.oauth_issuer or "",
        given.oauth_keys or "",
        given.oauth_username_claims,
        given.oauth_algorithms,
        given.oauth_ca,
        given.oauth_client_id or "",
        given.oauth_scopes,
    )


def _archive(given: SettingValues) -> ArchiveConfig:
    age = given.segment_age
    if age is None and given.archive is not None and given.kafka is None:
        age = SEGMENT_AGE_MS
    return ArchiveConfig(given.archive, age, given.archive_lag or LAG_MS, given.keep_local or "")


def kafka_settings(pairs: tuple[tuple[str, str], ...], file: Path | None) -> tuple[tuple[str, str], ...]:
    """Return the settings of Kafka's clients: those of the file, and over them those that were given one by one.

    ConfigError: the file cannot be read."""
    try:
        written = [] if file is None else read_settings_file(file)
    except BadSettings as error:
        raise ConfigError(f"--kafka-config: {error}") from None
    return tuple((dict(written) | dict(pairs)).items())


def _password(file: Path | None, setting: str = "default_pass_file") -> str:
    if file is None:
        return "guest"
    try:
        return secret_in(file)
    except BadSecret as error:
        raise ConfigError(f"{setting}: {error}") from None


def credentials_of(file: Path | None) -> dict[str, str]:
    """Return the credentials of the archive, as variables of the environment.

    ConfigError: the file cannot be read, or has another variable."""
    try:
        lines = [] if file is None else lines_of(file)
    except BadSettings as error:
        raise ConfigError(f"archive_credentials: {error}") from None
    for number, name, _ in lines:
        if not name.startswith(CREDENTIALS):
            raise ConfigError(
                f"archive_credentials: {file}:{number}: {name} is not a variable of a store:"
                f" {', '.join(CREDENTIALS)}..."
            )
    return {name: value for _, name, value in lines}
