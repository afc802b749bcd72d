"""The table of settings: each setting of `rewindmq start` is named here, and nowhere else.

    option        --amqp-port N                     in a file     amqp_port = N
    environment   REWINDMQ_AMQP_PORT=N              in `Config`   assembly.py hands the values over

To add a setting: one row here, one field of `Config` (engine/config.py). If the field has the setting's name and takes
the value as it is parsed, that is all. The options of `start` and `config`, the environment, the file, its check and
`rewindmq config` follow. `python -m tests.support.configuration_page` writes the table of
docs/operators/configuration.md anew.
"""

from dataclasses import dataclass, replace

from rewindmq.engine.cli.configuration.kinds import (
    DAYS,
    DIRECTORY,
    DURATION,
    FILE,
    FILE_OR_DIRECTORY,
    FLAG,
    KAFKA_PAIRS,
    MILLISECONDS,
    NAMES,
    NETWORKS,
    PORT,
    TEXT,
    Kind,
    choice,
    parsed,
    whole,
)
from rewindmq.engine.config import ACTS, EVERY_ACT, LOCALHOST, MAX_MESSAGE_SIZE
from rewindmq.engine.host.watermarks import disk_limit, memory_watermark
from rewindmq.engine.identity.settings import algorithms_of, checked_url, place_of, scopes_of
from rewindmq.engine.logging_setup import FORMATS, LEVELS
from rewindmq.projections.machine.rules.profile import PROFILES, RABBITMQ_3_13


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    `default` is a text, as on a command line; None: there is none. `unit` is of the value. `secret`: the value is the
    path of a file with a secret, whose content is never shown. `reload`: SIGHUP takes a new value over; else it needs a
    restart. `rabbitmq`: the name in rabbitmq.conf."""

    name: str
    kind: Kind
    help: str
    default: str | None = None
    metavar: str | None = None
    unit: str = ""
    secret: bool = False
    reload: bool = False
    rabbitmq: str = ""
    bare: str = ""  # the value of the option without a value; empty: it needs one
    variable: str = ""  # of the environment, where another program has the usual name

    @property
    def option(self) -> str:
        """The name of the option."""
        return "--" + self.name.replace("_", "-")

    @property
    def environment(self) -> str:
        """The name of the variable."""
        return self.variable or "REWINDMQ_" + self.name.upper()


def _header(name: str) -> str:
    from rewindmq.engine.erasure.encryption import why_no_subject_header

    reason = why_no_subject_header(name) if name else None
    if reason is not None:
        raise ValueError(reason)
    return name


def _limits(text: str) -> str:
    from rewindmq.engine.keeping.local_limits import local_limits

    if text:
        local_limits(text)
    return text


def _acts(text: str) -> tuple[str, ...]:
    acts = tuple(each.strip() for each in text.split(",") if each.strip())
    if unknown := set(acts) - {*ACTS, EVERY_ACT}:
        raise ValueError(f"'{min(unknown)}' is not one of {', '.join(ACTS)}")
    return acts


ACT_NAMES = parsed("acts", _acts, "names of acts with commas between them, or an array of names", list)
HTTPS_URL = parsed("url", checked_url, "a URL with https")
KEY_PLACE = replace(parsed("keys", place_of, "a file, or a URL with https"), is_path=True)
ALGORITHMS = parsed("algorithms", algorithms_of, "names with commas between them, or an array of names", list)
SCOPES = parsed("scopes", scopes_of, "scopes with blanks between them")
HEADER = parsed("header", _header, "the name of a header")
LIMITS = parsed("limits", _limits, "an age, a size or both: 7d,50GB")
MEMORY = parsed("limit", memory_watermark, "a part of the memory (0.4) or a size (2GB)", float, int)
DISK = parsed("limit", disk_limit, "a size (50MB) or mem_relative:1.5", int)

NODE = (
    Setting(
        "data", DIRECTORY, "Data directory.", "rewindmq-data", metavar="DIRECTORY", rabbitmq="RABBITMQ_MNESIA_BASE"
    ),
    Setting("node", TEXT, "The node's name.", "rewindmq@localhost", rabbitmq="RABBITMQ_NODENAME"),
    Setting(
        "partitions",
        whole(1, 1024),
        "Number of partitions of a new queue log (default: 2). A log keeps its number until `rewindmq repartition`."
        " On Kafka: the number at the beginning, if partitions were added by Kafka's own tools.",
    ),
    Setting(
        "commit_interval",
        MILLISECONDS,
        "The longest time between two group commits of the embedded log. A crash can cost messages of this time for"
        " which nobody waited. It is at most 1ms while a client waits for a confirm. 0: commit as fast as the disk."
        " Not with --kafka: there linger.ms of the Kafka clients says how long records wait for others, 1 by default.",
        "5ms",
        metavar="DURATION",
    ),
    Setting(
        "require_reason",
        ACT_NAMES,
        f"Refuse these acts without a reason (--reason, or X-Reason over HTTP): {', '.join(ACTS)}. Without VERBS, or"
        f" with {EVERY_ACT}: all of them. A purge or deletion by AMQP, which cannot have one, is refused only if its"
        " act is named.",
        "",
        metavar="[VERBS]",
        bare=EVERY_ACT,
    ),
    Setting(
        "read_only", FLAG, "Serve the history and refuse each change. Nothing is written, and nothing expires.", "false"
    ),
    Setting(
        "semantics",
        choice(*sorted(PROFILES)),
        "The RabbitMQ that queues behave like, unless x-semantics says another.",
        RABBITMQ_3_13.name,
    ),
    Setting(
        "load_definitions",
        FILE_OR_DIRECTORY,
        "Import this file, or each *.json of this directory. The user guest is not created then.",
        reload=True,
        rabbitmq="load_definitions",
    ),
    Setting("default_user", TEXT, "The user that the first start makes.", "guest", rabbitmq="default_user"),
    Setting(
        "default_pass_file",
        FILE,
        "File with the password of --default-user (default: no file, and the password guest).",
        secret=True,
        rabbitmq="default_pass",
    ),
    Setting(
        "loopback_users",
        NAMES,
        "Users that may connect from this machine only; empty: no user is restricted.",
        "guest",
        metavar="NAME,...",
        reload=True,
        rabbitmq="loopback_users",
    ),
)
LISTENERS = (
    Setting("host", TEXT, "Address to listen on; localhost and :: mean IPv4 and IPv6.", LOCALHOST),
    Setting("amqp_port", PORT, "Port of AMQP.", "5672", rabbitmq="listeners.tcp.default"),
    Setting(
        "http_port",
        PORT,
        "Port of the management API (default: 15672; with --https-port: none).",
        rabbitmq="management.tcp.port",
    ),
    Setting(
        "prometheus_port", PORT, "A second port for metrics only (RabbitMQ's is 15692).", rabbitmq="prometheus.tcp.port"
    ),
    Setting(
        "proxy_protocol",
        FLAG,
        "AMQP clients come through a balancer that sends the PROXY protocol's header (v1 or v2).",
        "false",
        rabbitmq="proxy_protocol",
    ),
    Setting(
        "proxy_protocol_from",
        NETWORKS,
        "Only connections from there (10.0.0.0/24) begin with that header, including those of HTTP and over TLS.",
        "",
        metavar="NETWORK,...",
    ),
    Setting("tls_port", PORT, "Port of AMQP over TLS (RabbitMQ's is 5671).", rabbitmq="listeners.ssl.default"),
    Setting(
        "https_port", PORT, "Port of the management API over TLS (RabbitMQ's is 15671).", rabbitmq="management.ssl.port"
    ),
    Setting(
        "tls_cert",
        FILE,
        "The broker's certificate, with its chain (PEM).",
        reload=True,
        rabbitmq="ssl_options.certfile",
    ),
    Setting(
        "tls_key",
        FILE,
        "The private key of the certificate (PEM).",
        secret=True,
        reload=True,
        rabbitmq="ssl_options.keyfile",
    ),
    Setting(
        "tls_ca",
        FILE,
        "The certificate authority of clients (PEM).",
        reload=True,
        rabbitmq="ssl_options.cacertfile",
        variable="REWINDMQ_TLS_CLIENT_CA",  # commands take REWINDMQ_TLS_CA: the authority that they trust
    ),
    Setting(
        "tls_verify_peer",
        FLAG,
        "A client's certificate must be signed by --tls-ca.",
        "false",
        reload=True,
        rabbitmq="ssl_options.verify = verify_peer",
    ),
    Setting(
        "tls_fail_if_no_peer_cert",
        FLAG,
        "Refuse a client without a certificate.",
        "false",
        reload=True,
        rabbitmq="ssl_options.fail_if_no_peer_cert",
    ),
    Setting(
        "tls_login_from",
        choice("distinguished_name", "common_name"),
        "Log in by certificate (SASL EXTERNAL), with the user's name from this field.",
        reload=True,
        rabbitmq="ssl_cert_login_from",
    ),
)
TOKENS = (
    Setting(
        "oauth_resource_server_id",
        TEXT,
        "Take tokens (JWT) in the place of passwords: this broker's name in their audience, and before their scopes.",
        metavar="NAME",
        reload=True,
        rabbitmq="auth_oauth2.resource_server_id",
    ),
    Setting(
        "oauth_issuer",
        HTTPS_URL,
        "The identity provider: tokens must be of this issuer. Its configuration says where its keys are.",
        metavar="URL",
        reload=True,
        rabbitmq="auth_oauth2.issuer",
    ),
    Setting(
        "oauth_keys",
        KEY_PLACE,
        "The provider's public keys (JWKS): a file, or a URL with https (default: as the issuer's configuration says).",
        metavar="FILE|URL",
        reload=True,
        rabbitmq="auth_oauth2.jwks_url",
    ),
    Setting(
        "oauth_ca",
        FILE,
        "The certificate authority of the provider's server (PEM; default: those that the system trusts).",
        reload=True,
        rabbitmq="auth_oauth2.https.cacertfile",
    ),
    Setting(
        "oauth_algorithms",
        ALGORITHMS,
        "Algorithms that tokens may be signed with.",
        "RS256,ES256",
        metavar="NAME,...",
        reload=True,
        rabbitmq="auth_oauth2.algorithms",
    ),
    Setting(
        "oauth_username_claims",
        NAMES,
        "Claims of a token that may name the user; the first one that is there does.",
        "sub,client_id",
        metavar="NAME,...",
        reload=True,
        rabbitmq="auth_oauth2.preferred_username_claims",
    ),
    Setting(
        "oauth_client_id",
        TEXT,
        "The desk's name at the provider: people sign in to the desk there (code flow with PKCE, a public client).",
        metavar="NAME",
        reload=True,
        rabbitmq="management.oauth_client_id",
    ),
    Setting(
        "oauth_scopes",
        SCOPES,
        "What the desk asks the provider for: openid, and what its tokens need.",
        "openid profile",
        metavar="SCOPES",
        reload=True,
        rabbitmq="management.oauth_scopes",
    ),
)
LIMITED = (
    Setting(
        "max_message_size",
        whole(0, MAX_MESSAGE_SIZE),
        "Bytes; larger messages are refused.",
        "134217728",
        unit="bytes",
        rabbitmq="max_message_size",
    ),
    Setting(
        "consumer_timeout",
        whole(1),
        "Milliseconds that a delivery may stay unacknowledged; then its channel is closed.",
        "1800000",
        unit="milliseconds",
        reload=True,
        rabbitmq="consumer_timeout",
    ),
    Setting(
        "vm_memory_high_watermark",
        MEMORY,
        "Publishers are held back above this part of the machine's or container's memory, or this size (2GB).",
        "0.4",
        metavar="FRACTION|SIZE",
        reload=True,
        rabbitmq="vm_memory_high_watermark.relative, .absolute",
    ),
    Setting(
        "disk_free_limit",
        DISK,
        "Free disk space below which publishers are held back.",
        "50MB",
        metavar="SIZE|mem_relative:N",
        reload=True,
        rabbitmq="disk_free_limit.absolute, .relative",
    ),
)
LOGS = (
    Setting(
        "log_level",
        choice(*LEVELS),
        "The lowest level that is logged to stderr.",
        "info",
        reload=True,
        rabbitmq="log.console.level",
    ),
    Setting(
        "log_format",
        choice(*FORMATS),
        "How the log on stderr is written: lines for people, or one JSON object a line.",
        "text",
        rabbitmq="log.console.formatter",
    ),
    Setting(
        "loop_warning",
        MILLISECONDS,
        "Log work that kept all clients waiting for longer, and whose it was; 0: log and count none.",
        "100ms",
        metavar="DURATION",
    ),
)
KAFKA = (
    Setting(
        "kafka",
        TEXT,
        "Bootstrap servers of the Kafka that has the log. Without it the log is in the data directory.",
        metavar="HOST:PORT,...",
    ),
    Setting("kafka_prefix", TEXT, "Prefix of the names of the topics.", "rewindmq"),
    Setting(
        "kafka_setting",
        KAFKA_PAIRS,
        "A setting of the Kafka clients, by librdkafka's names. May be given several times. Not for secrets.",
        metavar="KEY=VALUE",
    ),
    Setting(
        "kafka_config",
        FILE,
        "A file with such settings, KEY=VALUE, one a line. For secrets.",
        metavar="FILE",
        secret=True,
    ),
    Setting("kafka_replication", whole(1), "Replicas of new topics (default: 3, or the number of brokers if smaller)."),
    Setting(
        "node_timeout",
        whole(1, 600),
        "Seconds of silence after which a node is lost; its unacked messages go to other consumers.",
        "6",
        unit="seconds",
    ),
    Setting(
        "standbys",
        whole(0, 1_000),
        "Nodes that fold a partition beside its owner (default: all). Others fold it only while a client needs it.",
        unit="nodes",
    ),
)
HISTORY = (
    Setting(
        "keep_history",
        DURATION,
        "Trim older history, such as 400d, while the broker runs: it goes for good. Queued messages stay.",
        metavar="DURATION",
    ),
    Setting(
        "find_index",
        DURATION,
        "Index the ids of messages that are younger, such as 7d, beside the broker: `find --message-id` is quick.",
        metavar="DURATION",
    ),
    Setting(
        "archive",
        TEXT,
        "Archive the history beside the broker: s3://BUCKET/PREFIX, gs://..., az://..., or a directory.",
        metavar="URL",
    ),
    Setting(
        "archive_credentials",
        FILE,
        "A file with the credentials of the archive, by the names of the store's tools: AWS_ACCESS_KEY_ID=...",
        metavar="FILE",
        secret=True,
    ),
    Setting(
        "segment_age",
        DURATION,
        "Close segments that are older, so that they can be archived (default with --archive: 1h).",
        metavar="DURATION",
    ),
    Setting(
        "archive_lag",
        DURATION,
        "How often the archiver looks for closed segments; on Kafka how far it may be behind (default: 1m).",
        metavar="DURATION",
    ),
    Setting(
        "keep_local",
        LIMITS,
        "Remove what is archived from here, or from Kafka, beyond an age, a size or both (7d, 50GB, 7d,50GB).",
        metavar="LIMIT",
    ),
    Setting(
        "subject_header",
        HEADER,
        "A header that names a subject. Bodies are encrypted under the subject's key, and can be erased.",
        metavar="NAME",
    ),
    Setting(
        "keep_bodies",
        DAYS,
        "Such as 30d: bodies are encrypted under a key of their day, which is destroyed after this number of days.",
        metavar="DAYS",
    ),
    Setting(
        "keys",
        DIRECTORY,
        "Directory of the keys of bodies (default: keys in the data directory); nodes on one Kafka share it.",
    ),
    Setting(
        "vault",
        HTTPS_URL,
        "A HashiCorp Vault or an OpenBao. Its transit engine seals keys of bodies, and an erasure destroys them there.",
        metavar="URL",
    ),
    Setting("vault_token_file", FILE, "A file with a token for the Vault. It is read anew each time.", secret=True),
    Setting("vault_mount", TEXT, "The path of the transit engine.", "transit", metavar="PATH"),
    Setting("vault_namespace", TEXT, "The namespace in the Vault (default: none).", metavar="NAME"),
    Setting("vault_ca", FILE, "The certificate authority of the Vault (PEM; default: those that the system trusts)."),
)
STANDBY = (
    Setting(
        "confirm_after",
        choice("sync", "follower"),
        "When a publish is confirmed: after this machine's sync, or also after that of each follower.",
        "sync",
    ),
    Setting("leader_user", TEXT, "With `rewindmq follow`: the user at the leader, an administrator.", "guest"),
    Setting(
        "leader_pass_file",
        FILE,
        "With `rewindmq follow`: a file with the password of --leader-user (default: no file, and the password guest).",
        secret=True,
    ),
    Setting(
        "leader_ca",
        FILE,
        "With `rewindmq follow`: the certificate authority of a leader at https:// (default: the system's).",
    ),
)
SECTIONS: dict[str, tuple[Setting, ...]] = {
    "The node and its users": NODE,
    "Listeners and TLS": LISTENERS,
    "Tokens of an identity provider": TOKENS,
    "Limits": LIMITED,
    "The log on stderr": LOGS,
    "A log in Kafka": KAFKA,
    "History, archive and bodies": HISTORY,
    "A second machine": STANDBY,
}
SETTINGS: dict[str, Setting] = {setting.name: setting for section in SECTIONS.values() for setting in section}
