"""The options of the TLS listeners."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rewindmq.engine.tls import TlsListener

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--tls-port", type=click.IntRange(1, 65535), help="Port of AMQP over TLS (RabbitMQ's is 5671)."),
    click.option(
        "--https-port", type=click.IntRange(1, 65535), help="Port of the management API over TLS (RabbitMQ's is 15671)."
    ),
    click.option("--tls-cert", type=FILE, help="The broker's certificate, with its chain (PEM)."),
    click.option("--tls-key", type=FILE, help="The private key of the certificate (PEM)."),
    click.option("--tls-ca", type=FILE, help="Certificate authority of the clients' certificates (PEM)."),
    click.option("--tls-verify-peer", is_flag=True, help="A client's certificate must be signed by --tls-ca."),
    click.option("--tls-fail-if-no-peer-cert", is_flag=True, help="Refuse a client without a certificate."),
    click.option(
        "--tls-login-from",
        type=click.Choice(["distinguished_name", "common_name"]),
        help="Log in by certificate (SASL EXTERNAL), with the user's name from this field.",
    ),
)


def with_tls(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that adds these options. The command gets `https_port`, and `tls` (None: no listener has TLS)."""

    @functools.wraps(command)
    def with_one(
        *arguments: Any,
        tls_port: int | None,
        https_port: int | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        tls_ca: Path | None,
        tls_verify_peer: bool,
        tls_fail_if_no_peer_cert: bool,
        tls_login_from: str | None,
        **options: Any,
    ) -> Any:
        tls = None
        if tls_port is not None or https_port is not None:
            if tls_cert is None or tls_key is None:
                raise click.UsageError("--tls-port and --https-port need --tls-cert and --tls-key")
            if tls_port is None and (tls_ca or tls_verify_peer):
                raise click.UsageError(
                    "--tls-ca and --tls-verify-peer need --tls-port: the management API asks for no certificate"
                )
            if tls_verify_peer and tls_ca is None:
                raise click.UsageError("--tls-verify-peer needs --tls-ca")
            if (tls_fail_if_no_peer_cert or tls_login_from) and not tls_verify_peer:
                raise click.UsageError("--tls-fail-if-no-peer-cert and --tls-login-from need --tls-verify-peer")
            tls = TlsListener(
                tls_port, tls_cert, tls_key, tls_ca, tls_verify_peer, tls_fail_if_no_peer_cert, tls_login_from
            )
        elif tls_cert or tls_key or tls_ca or tls_verify_peer or tls_fail_if_no_peer_cert or tls_login_from:
            raise click.UsageError("the --tls- options need --tls-port or --https-port")
        return command(*arguments, tls=tls, https_port=https_port, **options)

    for option in reversed(OPTIONS):
        with_one = option(with_one)
    return with_one
