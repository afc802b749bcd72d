"""Logins at a Kafka with OAUTHBEARER: by client credentials, and as at Amazon MSK by tokens that this program makes.

A real Apache Kafka checks the tokens of a real OpenID provider, and closes connections whose token has expired. `make
soak` runs this file. There is no Amazon MSK here: tests/unit/log/test_log_kafka_msk.py checks the tokens for it."""

import asyncio
import base64
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from rewindmq.engine.cli.exits import UNAVAILABLE
from rewindmq.engine.log.kafka.log import KafkaLog
from rewindmq.spark_replay.location.kafka_settings import for_java
from tests.support.kafka.cluster import FAST, JAVA, KafkaCluster, java
from tests.support.kafka.fixtures import require_kafka
from tests.support.kafka.following import Following
from tests.support.openid.server import BRIEF, BRIEF_SECONDS, SECRET, OpenIdProvider, require_openid
from tests.support.pika_clients import confirming
from tests.support.ports import free_ports
from tests.support.running import ROOT, RunningBroker

pytestmark = pytest.mark.rare

EXPIRED_SECONDS = 1.5 * BRIEF_SECONDS
PACKAGE = "org.apache.kafka.common.security.oauthbearer"


class GuardedKafka:
    """A Kafka with a listener that takes tokens of a provider."""

    def __init__(self, directory: Path, provider: OpenIdProvider) -> None:
        ports = free_ports(4)
        self.provider = provider
        self.bootstrap = f"127.0.0.1:{ports[2]}"
        listener = {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "oauthbearer.sasl.jaas.config": f"{PACKAGE}.OAuthBearerLoginModule required;",
            "oauthbearer.sasl.server.callback.handler.class": f"{PACKAGE}.OAuthBearerValidatorCallbackHandler",
            "oauthbearer.sasl.oauthbearer.jwks.endpoint.url": f"{provider.issuer}/jwks",
            "oauthbearer.sasl.oauthbearer.expected.audience": "rabbitmq",
            "oauthbearer.sasl.oauthbearer.expected.issuer": provider.issuer,
            "oauthbearer.connections.max.reauth.ms": "3600000",
        }
        settings = FAST | {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports[0]},PROXIED://{self.bootstrap}",
            **{f"listener.name.proxied.{name}": value for name, value in listener.items()},
        }
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.issuer}/jwks"
        self.cluster = KafkaCluster(directory, settings=settings, ports=ports, java=(*JAVA, allowed))
        self.public = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": BRIEF,
            "sasl.oauthbearer.token.endpoint.url": f"{provider.issuer}/token",
        }

    def options(self, directory: Path, secret: str) -> list[str]:
        """The options of a command that reads or writes this Kafka."""
        file = directory / "kafka.secret"
        file.write_text(f"sasl.oauthbearer.client.secret={secret}\n")
        pairs = [f"--kafka-setting={name}={value}" for name, value in self.public.items()]
        return ["--kafka", self.bootstrap, *pairs, "--kafka-config", str(file)]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedKafka]:
    require_kafka()
    require_openid()
    with OpenIdProvider("http://localhost:1/") as provider:
        kafka = GuardedKafka(tmp_path_factory.mktemp("kafka-tokens"), provider)
        with kafka.cluster:
            yield kafka


def test_a_node_logs_in_and_again_when_its_token_expires(guarded: GuardedKafka, tmp_path: Path) -> None:
    options = guarded.options(tmp_path, SECRET)
    broker = RunningBroker(tmp_path / "data", *options)
    try:
        with confirming(broker) as channel:
            channel.queue_declare("orders", durable=True)
            began = time.monotonic()
            sent = 0
            while time.monotonic() - began < 2 * EXPIRED_SECONDS:
                sent += 1
                channel.basic_publish("", "orders", str(sent).encode())
                channel.connection.sleep(0.5)
        rewind = subprocess.run(
            [sys.executable, "-m", "rewindmq", "rewind", "orders", "--at", "0s", *options],
            cwd=ROOT, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert f"{sent} ready" in rewind.stdout, rewind.stderr
    finally:
        assert broker.stop() == 0
    assert "".join(broker.errors).count("token") == 0, broker.errors


def test_a_wrong_secret_ends_the_start_with_one_line(guarded: GuardedKafka, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as ended:
        RunningBroker(tmp_path / "data", *guarded.options(tmp_path, "a wrong secret"))
    said = str(ended.value)
    assert said.startswith(f"the broker ended with {UNAVAILABLE}: "), said
    assert '"error":"invalid_client"' in said.splitlines()[-1]
    assert "a wrong secret" not in said
    assert "Traceback" not in said


def test_each_client_gets_tokens_that_this_program_makes(
    guarded: GuardedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at MSK, with tokens of the provider instead of AWS's: for topics, appends, reading, reading back, and duties,
    also for a client that has been idle since its token expired."""
    made = []

    def token_of(region: str) -> tuple[str, int]:
        answer = httpx2.post(
            guarded.public["sasl.oauthbearer.token.endpoint.url"],
            auth=(BRIEF, SECRET),
            data={"grant_type": "client_credentials"},
            trust_env=False,
        )
        token = answer.json()["access_token"]
        made.append(token)
        body = token.split(".")[1]
        return token, 1_000 * json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"]

    monkeypatch.setattr("aws_msk_iam_sasl_signer.MSKAuthTokenProvider.generate_auth_token", token_of)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "AWS_MSK_IAM"}

    async def run() -> None:
        log = KafkaLog.open(guarded.bootstrap, "made-here", settings=settings)
        following = Following(log)
        log.queues[0].append(b"", b"one")
        await following.until_read({"queues-0": 1})
        before = len(made)
        await asyncio.sleep(EXPIRED_SECONDS)
        assert len(made) > before, "librdkafka asked for new tokens"
        log.queues[0].append(b"", b"two")
        await following.until_read({"queues-0": 2})
        await following.until(lambda: len(following.owned) == 2)
        assert await asyncio.to_thread(log._clients.watermarks, "made-here.queues", 0) == (0, 2)
        await asyncio.to_thread(log.close)

    asyncio.run(run())


def test_sparks_client_logs_in_with_the_same_settings(guarded: GuardedKafka, tmp_path: Path) -> None:
    """The client is Java's own, of the Kafka that is tested with. As in Spark, its machine has to allow the address."""
    endpoint = guarded.public["sasl.oauthbearer.token.endpoint.url"]
    for secret, status in ((SECRET, 0), ("a wrong secret", 1)):
        settings = for_java({**guarded.public, "sasl.oauthbearer.client.secret": secret})
        settings |= {"bootstrap.servers": guarded.bootstrap}
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={endpoint}"
        program = Path(__file__).with_name("Login.java")
        command = java(str(program), str(file), options=(*JAVA, allowed))
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout.splitlines()[-1:] == ["1"]) == (status, status == 0), done.stderr
