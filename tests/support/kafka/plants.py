"""Forgeries of a sealed history in Kafka: (how, the offset at which it is found, the words of the finding)."""

import json
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rewindmq.engine.keeping.seals.seal import Seal, parsed_line, signed
from tests.support.kafka.sealed_topics import Topics, purge

Plant = Callable[[Topics], None]


def flip_a_bit(topics: Topics) -> None:
    timestamp_ms, value = topics.queues[517]
    topics.queues[517] = timestamp_ms, value[:-1] + bytes([value[-1] ^ 1])


def change_a_time(topics: Topics) -> None:
    timestamp_ms, value = topics.queues[517]
    topics.queues[517] = timestamp_ms + 1, value


def drop(topics: Topics) -> None:
    del topics.queues[517]


def drop_many(topics: Topics) -> None:
    del topics.queues[517:537]


def swap(topics: Topics) -> None:
    topics.queues[517], topics.queues[540] = topics.queues[540], topics.queues[517]


def insert(topics: Topics) -> None:
    topics.queues.insert(517, purge(77))


def cut_the_end(topics: Topics) -> None:
    del topics.queues[990:]


def of_queues(topics: Topics) -> list[int]:
    return [at for at, (_, line) in enumerate(topics.chain) if b'"partition": "queues-0"' in line]


def change_a_seal(topics: Topics) -> None:
    at = of_queues(topics)[1]
    content = json.loads(topics.chain[at][1])
    content["seal"]["root"] = "00" * 32
    topics.chain[at] = topics.chain[at][0], json.dumps(content).encode()


def sign_with_another_key(topics: Topics) -> None:
    """Seal the forged history with another key: the forger does not have the right one."""
    drop(topics)
    at = of_queues(topics)[1]
    line = topics.chain[at][1]
    seal = parsed_line(line, "").seal
    lie = Seal(**{name: getattr(seal, name) for name in Seal.__slots__} | {"root": "11" * 32})
    topics.chain[at] = topics.chain[at][0], signed(lie, Ed25519PrivateKey.generate()).line.encode()


def take_a_seal_away(topics: Topics) -> None:
    del topics.chain[of_queues(topics)[1]]


def take_all_seals_away(topics: Topics) -> None:
    topics.chain = []


def add_nonsense(topics: Topics) -> None:
    topics.chain.append((topics.chain[-1][0], b"{}"))


# Stretches are 0 to 299, 300 to 599, 600 to 899, 900 to 999
PLANTS: dict[str, tuple[Plant, str, int, str]] = {
    "a bit": (flip_a_bit, "queues-0", 517, "the record at offset 517 is not as it was sealed"),
    "a time": (change_a_time, "queues-0", 517, "the record at offset 517 is not as it was sealed"),
    "dropped": (drop, "queues-0", 517, "a record was dropped at offset 517"),
    "many dropped": (drop_many, "queues-0", 517, "20 records were dropped at offset 517"),
    "swapped": (swap, "queues-0", 517, "the records at offsets 517 and 540 were swapped"),
    "put in": (insert, "queues-0", 517, "a record was put in at offset 517"),
    "cut": (cut_the_end, "queues-0", 990, "the log ends at offset 990, and was sealed up to offset 999"),
    "a seal": (change_a_seal, "queues-0", 300, "the signature is not one of the key"),
    "a key": (sign_with_another_key, "queues-0", 300, "the signature is not one of the key"),
    "a seal gone": (take_a_seal_away, "queues-0", 300, "the seal of offsets 300 to 599 is gone"),
    "all seals gone": (take_all_seals_away, "queues-0", 0, "there is no seal of it"),
    "nonsense": (add_nonsense, "chain-0", 5, "not a seal"),
}
