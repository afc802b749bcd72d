"""A follower of a broker whose keys a Vault seals (B-64)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest

from rewindmq.engine.erasure.key_content import is_sealed
from rewindmq.engine.erasure.key_store import KeyStore
from rewindmq.engine.erasure.vault import PREFIX
from tests.support.deadlines import until
from tests.support.pika_clients import connect
from tests.support.running import RunningBroker
from tests.support.standby import RunningFollower, command, level
from tests.support.vault.server import VaultServer

pytestmark = pytest.mark.long


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[VaultServer]:
    with VaultServer(tmp_path) as found:
        yield found


def test_b64_a_follower_has_what_is_sealed_and_an_erasure_reaches_it(
    start_broker: Callable[..., RunningBroker], vault: VaultServer, tmp_path: Path
) -> None:
    options = ("--subject-header", "person", *vault.options)
    leader = start_broker(None, *options)
    follower = RunningFollower(tmp_path / "copy", leader.http_url, *options)
    try:
        connection = connect(leader)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("people", durable=True)
        channel.basic_publish("", "people", b"hers", pika.BasicProperties(delivery_mode=2, headers={"person": "ann"}))
        connection.close()
        until(lambda: level(leader))
        theirs, ours = KeyStore(leader.data / "keys"), KeyStore(follower.data / "keys")
        (key_id,) = theirs.known("ann")
        content = ours.content(key_id)
        assert content is not None
        assert is_sealed(content), "the follower has no key in clear"
        assert ours.read(key_id) == theirs.read(key_id) is not None
        assert command("erase_subject", "ann", url=leader.http_url).returncode == 0
        until(lambda: ours.has_tombstone(key_id) and not (ours.directory / key_id).exists())
        assert PREFIX + key_id not in vault.keys
    finally:
        follower.stop()
