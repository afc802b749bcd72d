"""A sealed history with a register, for tests: messages, seals, and a witness whose key a test has.

keys = SealKeys(directory)
write(data, range(10)); seal(data, keys, "--register", register, "--origin", ORIGIN)
"""

import struct
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from rewindmq.engine.cli.main import run
from rewindmq.engine.keeping.seals.proof_verifier import COSIGNATURE, Note, VerifierKey
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.schemas.codec import Encoder
from rewindmq.schemas.events import Published
from rewindmq.schemas.values import Actor, Route

ORIGIN = "example.org/orders"


class SealKeys:
    """The two halves of a sealer's key, in files."""

    def __init__(self, directory: Path, name: str = "seal") -> None:
        self.key = Ed25519PrivateKey.generate()
        self.private, self.public = directory / f"{name}.key", directory / f"{name}.pub"
        self.private.write_bytes(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        public = self.key.public_key()
        self.public.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def write(data: Path, numbers: Iterable[int]) -> None:
    """Publish messages with the bodies `order N` in queues-0, without a broker."""
    log = EmbeddedLog.open(data, partitions=1)
    encoder = Encoder()
    for number in numbers:
        body = b"order %d" % number
        event = Published(Route("/", "", "q", ("q",)), b"", persistent=True, body=body, body_size=len(body))
        log.queues[0].append(1_000 + number, encoder.encode(encoder.prefix(1_000 + number, Actor("ann", 7)), event))
    log.commit_and_wait()
    log.close()


def seal(data: Path, keys: SealKeys, *options: object) -> int:
    """`rewindmq seal`. Returns its exit code."""
    return run(["seal", "--quiet", "--data", str(data), "--key", str(keys.private), *map(str, options)])


class HandWitness:
    """A witness that signs what it is given: it stands for one of other people's."""

    def __init__(self, name: str = "witness.example/hand") -> None:
        self._key = Ed25519PrivateKey.generate()
        self.key = VerifierKey(name, COSIGNATURE, self._key.public_key().public_bytes_raw())

    def cosignature(self, note: Note, seconds: int) -> tuple[str, bytes]:
        signed = f"cosignature/v1\ntime {seconds}\n{note.text}".encode()
        return self.key.name, self.key.id + struct.pack(">Q", seconds) + self._key.sign(signed)
