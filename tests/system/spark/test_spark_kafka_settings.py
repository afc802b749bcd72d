"""A Kafka that asks for a password over TLS: settings said once reach our client and Spark's (B-18)."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rewindmq.engine.keeping.location import InKafka
from rewindmq.spark_replay import __main__ as cli
from rewindmq.spark_replay.history.history import history
from rewindmq.spark_replay.location.kafka_settings import for_java, read_settings
from rewindmq.spark_replay.location.ranges import BadRequest
from tests.support.certificates import Authority
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.fixtures import require_kafka
from tests.support.spark.topics import Writer, make_topics

pytestmark = pytest.mark.long

PASSWORD = 'se"cr\\et = 1'
LOGIN = r'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="se\"cr\\et = 1";'
OF_KAFKA = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:SASL_SSL",
    "listener.name.proxied.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.proxied.plain.sasl.jaas.config": LOGIN.replace("\\", "\\\\"),  # as a properties file has it
    "listener.name.proxied.ssl.keystore.type": "PEM",
}
SASL = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "ann"}


@pytest.mark.rare
def test_every_product_logs_in(
    spark: SparkSession, busy: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    require_kafka()
    directory = tmp_path_factory.mktemp("kafka-sasl")
    authority = Authority(directory)
    pair = authority.issue("kafka", "/CN=kafka", "IP:127.0.0.1")
    of_kafka = OF_KAFKA | {
        "listener.name.proxied.ssl.keystore.certificate.chain": pair.certificate.read_text().replace("\n", "\\n"),
        "listener.name.proxied.ssl.keystore.key": pair.key.read_text().replace("\n", "\\n"),
    }
    sasl = {**SASL, "sasl.password": PASSWORD, "ssl.ca.location": str(authority.certificate)}
    config = directory / "client.properties"
    config.write_text(
        f"# of ann\nsasl.username = ann\n\nsasl.password={PASSWORD}\nssl.ca.location={authority.certificate}\n"
    )
    options = ["--kafka-config", str(config), "--kafka-setting", "security.protocol=sasl_ssl"]
    options += ["--kafka-setting", "sasl.mechanism=PLAIN"]
    with KafkaCluster(directory, settings=of_kafka) as kafka, kafka.proxied() as line:
        Writer(make_topics(kafka.bootstrap, "secured", 2)).copy(busy)
        place = InKafka(line.bootstrap, "secured", tuple(sasl.items()))
        assert PASSWORD not in f"{place} {place!r}"
        assert history(spark, place).collect() == history(spark, str(busy)).collect()
        secured = {f"kafka.{name}": value for name, value in {"bootstrap.servers": line.bootstrap, **sasl}.items()}
        frame = spark.read.format("rewindmq").options(kafkaPrefix="secured", view="history", **secured).load()
        assert frame.collect() == history(spark, str(busy)).collect()
        where = ["--kafka", line.bootstrap, "--prefix", "secured", *options]
        assert cli.run(["audit", *where]) == 0  # which also asks for the topics' settings
        assert capsys.readouterr().out.rstrip().endswith("audit passed")
        watched = ["watch", *where, "--checkpoint", str(directory / "watch"), "--once"]
        assert cli.run(watched) == 0
        assert "0 violations" in capsys.readouterr().out


def test_what_java_calls_otherwise(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    given = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "ann",
        "sasl.password": 'a"b',
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "ssl.key.pem": "KEY",
        "ssl.certificate.pem": "CERT",
        "ssl.key.password": "p",
        "ssl.endpoint.identification.algorithm": "none",
    }
    assert for_java(given) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ann" password="a\\"b";',
        "ssl.truststore.certificates": "CA",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.key": "KEY",
        "ssl.keystore.certificate.chain": "CERT",
        "ssl.keystore.type": "PEM",
        "ssl.key.password": "p",
        "ssl.endpoint.identification.algorithm": "",
    }


def test_client_credentials_in_java() -> None:
    """tests/system/kafka/test_kafka_logins.py logs in with the result."""
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "ann",
        "sasl.oauthbearer.client.secret": 'a"b',
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.token.endpoint.url": "https://provider/token",
    }
    package = "org.apache.kafka.common.security.oauthbearer"
    assert for_java(given) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required "
        'clientId="ann" clientSecret="a\\"b" scope="kafka";',
        "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": "https://provider/token",
    }


def test_amazon_msk_in_java() -> None:
    assert for_java({"security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM"}) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "AWS_MSK_IAM",
        "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
        "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["sasl.mechanism=OAUTHBEARER"], "sasl.oauthbearer.method has to be oidc"),
        (["sasl.mechanism=OAUTHBEARER", "sasl.oauthbearer.method=oidc"], "sasl.oauthbearer.client.id is missing"),
        (["sasl.mechanism=GSSAPI"], "GSSAPI is not one of PLAIN"),
        (["sasl.mechanism=PLAIN", "sasl.username=ann"], "sasl.password is missing"),
        (["ssl.ca.location=/none"], "/none cannot be read"),
        (["enable.ssl.certificate.verification=false"], "no such setting"),
        (["sasl.password"], "is not KEY=VALUE"),
    ],
)
def test_what_cannot_be_told_to_both_is_refused(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadRequest, match=said):
        read_settings(given)
    options = [word for text in given for word in ("--kafka-setting", text)]
    assert cli.run(["history", "--kafka", "127.0.0.1:1", *options]) == 64
    assert said in capsys.readouterr().err


def test_settings_without_a_kafka_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["history", "--data", str(tmp_path), "--kafka-setting", "sasl.mechanism=PLAIN"]) == 64
    assert "need --kafka" in capsys.readouterr().err
    assert cli.run(["history", "--kafka", "x:1", "--kafka-config", str(tmp_path / "none")]) == 64
    assert "--kafka-config" in capsys.readouterr().err
