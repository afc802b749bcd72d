"""Tokens for Amazon MSK, signed by Amazon's library with credentials that nobody has: form, lifetime and errors.

No AWS is asked. tests/system/kafka/test_kafka_logins.py shows that each client of a real Kafka uses such tokens."""

import base64
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from rewindmq.engine.log.contract import LogError
from rewindmq.engine.log.kafka.clients import KafkaClients
from rewindmq.engine.log.kafka.msk import token_for, with_tokens

SETTINGS = {"security.protocol": "SASL_SSL", "sasl.mechanism": "AWS_MSK_IAM"}


@pytest.fixture(autouse=True)
def only_these_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PROFILE", "SESSION_TOKEN", "DEFAULT_REGION", "ROLE_ARN", "WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a key of nobody")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")


def test_a_token_is_a_signed_address_that_is_valid_for_15_minutes() -> None:
    token, expires = token_for("")
    address = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    assert (address.scheme, address.hostname) == ("https", "kafka.eu-central-1.amazonaws.com")
    query = {name: value for name, [value] in parse_qs(address.query).items()}
    assert query["Action"] == "kafka-cluster:Connect"
    assert query["X-Amz-Algorithm"] == "AWS4-HMAC-SHA256"
    assert query["X-Amz-Credential"].startswith("AKIDEXAMPLE/")
    assert query["X-Amz-Credential"].endswith("/eu-central-1/kafka-cluster/aws4_request")
    assert query["X-Amz-Expires"] == "900"
    assert len(query["X-Amz-Signature"]) == 64
    assert "a key of nobody" not in address.geturl()
    assert time.time() + 890 < expires <= time.time() + 900


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_a_client_of_msk_is_one_of_oauthbearer(name: str) -> None:
    settings = with_tokens({"security.protocol": "SASL_SSL", name: "AWS_MSK_IAM"})
    assert settings == {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": token_for}
    KafkaClients("127.0.0.1:1", SETTINGS).admin()


def test_other_clients_stay_as_they_are() -> None:
    settings = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "x"}
    assert with_tokens(settings) == settings


def test_a_region_and_credentials_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(LogError, match=r"^Kafka: no token for Amazon MSK: PartialCredentialsError: .*AWS_SECRET"):
        KafkaClients("127.0.0.1:1", SETTINGS).producer({})
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(LogError, match=r"^Kafka: no token for Amazon MSK: no AWS credentials were found$"):
        KafkaClients("127.0.0.1:1", SETTINGS).admin()
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(LogError, match=r"^Kafka: sasl.mechanism=AWS_MSK_IAM needs AWS_REGION: the region of"):
        KafkaClients("127.0.0.1:1", SETTINGS).consumer({})


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(LogError, match=r"pip install 'rewindmq\[kafka,msk\]'$"):
        KafkaClients("127.0.0.1:1", SETTINGS).admin()
