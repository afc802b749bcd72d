"""Seals hide what a copy withholds, and prove it all the same; nobody can prove another record (decision 0092)."""

import base64
import copy
import hashlib
import io
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from rewindmq.engine.cli.main import run
from rewindmq.engine.keeping.seals import sealer as sealing
from rewindmq.engine.keeping.seals.commitments import HEAD_BYTES, Commitments, committed_chain, opened
from rewindmq.engine.keeping.seals.in_files import SegmentedPartition, segmented
from rewindmq.engine.keeping.seals.proof_verifier import PLACE, Proven, leaf_hash, main
from rewindmq.engine.keeping.seals.seal import BadSeal, check_proof, fingerprint
from rewindmq.engine.keeping.seals.sealer import check, prove
from rewindmq.engine.log.embedded.log import EmbeddedLog
from rewindmq.schemas.codec import Decoder, Encoder
from rewindmq.schemas.events import Event, Published
from rewindmq.schemas.metadata_events import UserSet
from rewindmq.schemas.private_fields import WithheldFields
from rewindmq.schemas.registry import envelope_fingerprint, parsed_envelope_schema
from rewindmq.schemas.single_object import HEADER, HEADER_SIZE
from rewindmq.schemas.values import Actor, Route

KEY = Ed25519PrivateKey.generate()
KEYS = {fingerprint(KEY.public_key()): KEY.public_key()}
ROUTE = Route("/", "", "q", ("q",))
HASH = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHQ$aGFzaGhhc2g"
ANN = Actor("ann", 7)
PINS = [b"%02d" % number for number in range(100)]


def message(body: bytes, properties: bytes = b"\0\0") -> Published:
    return Published(ROUTE, properties, persistent=True, body=body, body_size=len(body))


def record(event: Event, actor: Actor = ANN) -> bytes:
    encoder = Encoder()
    return encoder.encode(encoder.prefix(1_763_715_845_678, actor), event)


def sealed(data: Path, *told: Event, actor: Actor = ANN) -> SegmentedPartition:
    log = EmbeddedLog.open(data, partitions=1)
    for event in told:
        log.queues[0].append(1_763_715_845_678, record(event, actor))
        log.commit_and_wait()
    log.close()
    [part] = [each for each in segmented(data) if each.name == "queues-0"]
    assert list(sealing.seal(part, KEY, 5_000))
    return part


@pytest.fixture
def part(tmp_path: Path) -> SegmentedPartition:
    return sealed(tmp_path / "data", message(b"42"), message(b"43"), UserSet("ann", HASH, ()), message(b""))


def proof_of(part: SegmentedPartition, offset: int, with_body: bool = True) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(prove(part, offset, with_body=with_body)))
    return found


# -- what is withheld is proven ----------------------------------------------------------------------------------------


def test_b05_a_proof_shows_the_stored_record_and_may_withhold_its_body(part: SegmentedPartition) -> None:
    told: list[Published | UserSet] = [message(b"42"), message(b"43"), UserSet("ann", HASH, ()), message(b"")]
    for offset, event in enumerate(told):
        proven = check_proof(proof_of(part, offset), KEYS)
        assert (proven.record, proven.withheld) == (record(event), [])
        withheld = check_proof(proof_of(part, offset, with_body=False), KEYS)
        assert withheld.withheld == [len(HASH) if isinstance(event, UserSet) else len(event.body)]
        assert withheld.seal == proven.seal
        timestamp_ms, actor, found = Decoder().decode(withheld.record)
        assert (timestamp_ms, actor, type(found)) == (1_763_715_845_678, Actor("ann", 7), type(event))
        assert HASH.encode() not in withheld.record
        if isinstance(found, Published):
            assert len(found.body) == 32, "a commitment, whatever the size of the body"


def test_b78_a_reason_lifts_no_withheld_field(tmp_path: Path) -> None:
    """A new password and a restored message, whose actor said why: proven and shown without hash and body."""
    why = Actor("ann", 7, "ticket 4711")
    told: tuple[UserSet, Published] = (UserSet("bob", HASH, ()), message(b"a secret"))
    part = sealed(tmp_path / "data", *told, actor=why)
    for offset, secret in enumerate((HASH.encode(), b"a secret")):
        event: Event = told[offset]
        assert check_proof(proof_of(part, offset), KEYS).record == record(event, why)
        withheld = check_proof(proof_of(part, offset, with_body=False), KEYS)
        assert withheld.withheld == [len(secret)]
        assert secret not in withheld.record
        _, actor, found = Decoder().decode(withheld.record)
        assert (actor, type(found)) == (why, type(event))


def test_any_avro_tool_reads_a_record_with_a_withheld_field(part: SegmentedPartition) -> None:
    bare = [check_proof(proof_of(part, at, with_body=False), KEYS).record[HEADER_SIZE:] for at in (0, 2)]
    body, user = (fastavro.schemaless_reader(io.BytesIO(each), parsed_envelope_schema(), None) for each in bare)
    assert isinstance(body, dict)
    assert isinstance(user, dict)
    assert len(body["event"]["body"]) == 32
    assert body["event"]["route"]["routing_key"] == "q"
    assert len(bytes.fromhex(user["event"]["password_hash"])) == 32


def test_the_commands_withhold_a_body(
    part: SegmentedPartition, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    public = tmp_path / "seal.pub"
    public.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    assert run(["prove", "queues-0:1", "--data", str(tmp_path / "data"), "--no-body"]) == 0
    (tmp_path / "proof.json").write_text(capsys.readouterr().out)
    assert run(["check_proof", str(tmp_path / "proof.json"), "--public-key", str(public)]) == 0
    said = capsys.readouterr().out
    assert "what: Published routing_key=q queues=[q] properties=2 bytes persistent body=2 bytes" in said
    assert "body: withheld, 2 bytes" in said
    assert run(["check_proof", str(tmp_path / "proof.json"), "--public-key", str(public), "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["withheld"], shown["fields"]["body_size"], "body" in shown) == ([2], 2, False)
    assert main([str(tmp_path / "proof.json"), "--public-key", str(public)]) == 0
    assert "withheld: 2 bytes of the record; a commitment is in their place" in capsys.readouterr().out


def test_a_foreign_value_is_proven_and_withheld_as_a_whole() -> None:
    commitments = Commitments(bytes(32), WithheldFields(envelope_fingerprint()), 8)
    [time, value] = commitments.parts(7, b"12345678" + b"{}", True)
    assert time == {"shown": base64.b64encode(b"12345678").decode()}
    assert (value["form"], value["withheld"]) == ("value", base64.b64encode(b"{}").decode())
    assert list(commitments.parts(7, b"", True)) == []
    [nothing, *empty] = commitments.leaves(7, [b"", b"12345678", b"12345678"])
    assert nothing == leaf_hash(b"\0")
    assert empty[0] != empty[1], "an empty value has its salt, too"


# -- a guess of a short body -------------------------------------------------------------------------------------------


def hashes_of(guess: bytes, chain_before: bytes) -> Iterator[str]:
    """Yield the hashes that anybody can compute who knows a stretch of one record but for two digits, and no secret."""
    value = record(message(guess))
    for each in (guess, value, value[HEADER_SIZE:], b"\0" + value):
        yield leaf_hash(each).hex()
        yield hashlib.sha256(each).hexdigest()
        yield hashlib.sha256(hashlib.sha256(each).digest()[:4]).hexdigest()
        yield hashlib.sha256(leaf_hash(each)[:4]).hexdigest()
        yield hashlib.sha256(bytes(32) + each).hexdigest()
        yield hashlib.sha256(chain_before + each).hexdigest()


def strings_in(content: Any) -> set[str]:
    if isinstance(content, dict):
        return set().union(*map(strings_in, content.values()))
    if isinstance(content, list):
        return set().union(*map(strings_in, content))
    return {content} if isinstance(content, str) else set()


def test_b05_a_seal_and_other_proofs_do_not_tell_which_guess_is_right(tmp_path: Path) -> None:
    """Logs that differ in two digits: each hash in their seals and in other proofs is another one at each sealing."""
    public: list[set[str]] = []
    for number, body in enumerate((b"42", b"42")):
        part = sealed(tmp_path / str(number), message(body), message(b"43"))
        [stored] = part.seals()[0]
        opening = part.opening(stored)
        shown = proof_of(part, 1), proof_of(part, 0, with_body=False), json.loads(stored.line)
        public.append({each for each in strings_in(list(shown)) if len(each) == 64})
        assert opening[HEAD_BYTES - 32 : HEAD_BYTES].hex() not in public[-1], "the hash chain is not among them"
        guesses = {each for pin in PINS for each in hashes_of(pin, hashlib.sha256(b"queues-0").digest())}
        assert not guesses & public[-1]
    known = {fingerprint(KEY.public_key())}
    assert public[0] & public[1] == known, "the same records give the same hash: so a guess could be checked"


def test_with_the_secret_the_guess_would_be_found(tmp_path: Path) -> None:
    """So the test above looks at the right things."""
    part = sealed(tmp_path / "data", message(b"42"))
    [stored] = part.seals()[0]
    secret = part.opening(stored)[:32]
    commitments = Commitments(secret, WithheldFields(envelope_fingerprint()), 0)
    roots = [pin for pin in PINS if next(commitments.leaves(0, [record(message(pin))])).hex() == stored.seal.root]
    prints = [
        pin
        for pin in PINS
        if hashlib.sha256(commitments.print_of(record(message(pin)))).hexdigest() == stored.seal.prints
    ]
    assert roots == prints == [b"42"]


def test_salts_are_of_their_offset_their_seal_and_of_nothing_else(part: SegmentedPartition) -> None:
    one, other = (Commitments(bytes([at]) * 32, WithheldFields(envelope_fingerprint()), 0) for at in (1, 2))
    salts = [each.salt(offset) for each in (one, other) for offset in range(50)]
    assert len(set(salts)) == 100
    secret = part.opening(part.seals()[0][0])[:32]
    assert secret != bytes(32)
    assert secret.hex() not in json.dumps(proof_of(part, 1))
    assert base64.b64encode(secret).decode() not in json.dumps(proof_of(part, 1))


def test_an_opening_is_that_of_its_seal_alone(part: SegmentedPartition) -> None:
    [stored] = part.seals()[0]
    content, seal = part.opening(stored), stored.seal
    assert opened(content, seal.chain, seal.next_offset) is not None
    for at in range(HEAD_BYTES):
        assert opened(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :], seal.chain, seal.next_offset) is None
    assert opened(content, seal.chain, seal.next_offset + 1) is None
    assert opened(content[: HEAD_BYTES - 1], seal.chain, seal.next_offset) is None
    assert committed_chain(content[:32], seal.next_offset, content[32:HEAD_BYTES]) == seal.chain


# -- a false record ----------------------------------------------------------------------------------------------------


def changed_in(part: int, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda proof: proof["record"][part].update(fields)


def swapped_salts(proof: dict[str, Any]) -> None:
    proof["record"][1]["salt"] = proof["other"]["record"][1]["salt"]


def anothers_field(proof: dict[str, Any]) -> None:
    proof["record"][1] = proof["other"]["record"][1]


def the_commitment_is_shown(proof: dict[str, Any]) -> None:
    """The 32 bytes of the commitment, as if they were the body."""
    closed = proof["closed"]["record"]
    shown = base64.b64decode(closed[0]["shown"]) + b"\x40" + bytes.fromhex(closed[1]["commitment"])
    proof["record"] = [{"shown": base64.b64encode(shown).decode()}]


def another_size(proof: dict[str, Any]) -> None:
    proof["record"] = proof["closed"]["record"]
    proof["record"][1]["size"] += 1


def shown_in_two(proof: dict[str, Any]) -> None:
    content = base64.b64decode(proof["record"][0]["shown"])
    pieces = (content[:20], content[20:])
    proof["record"][:1] = [{"shown": base64.b64encode(each).decode()} for each in pieces]


def an_empty_part(proof: dict[str, Any]) -> None:
    proof["record"].append({"shown": ""})


@pytest.mark.parametrize(
    "change",
    [
        changed_in(1, withheld=base64.b64encode(b"44").decode()),
        changed_in(1, withheld=""),
        changed_in(1, salt="00" * 32),
        changed_in(1, form="text"),
        changed_in(1, form="value"),
        changed_in(1, form="more"),
        changed_in(1, size=2),
        changed_in(0, shown=base64.b64encode(record(message(b"43"))[:-3]).decode().swapcase()),
        swapped_salts,
        anothers_field,
        the_commitment_is_shown,
        another_size,
        shown_in_two,
        an_empty_part,
        lambda proof: proof["record"].reverse(),
        lambda proof: proof["record"].pop(),
        lambda proof: proof.update(record=[]),
        lambda proof: proof.update(record=[7]),
        lambda proof: proof.update(record=[{"commitment": "00" * 32, "size": -1, "form": "bytes"}]),
        lambda proof: proof.update(record=proof["closed"]["record"] * 200),
    ],
)
def test_b05_a_changed_split_or_opening_is_refused(
    part: SegmentedPartition, change: Callable[[dict[str, Any]], None]
) -> None:
    given = proof_of(part, 0)
    assert check_proof(given, KEYS).record == record(message(b"42"))
    given |= {"other": proof_of(part, 1), "closed": proof_of(part, 0, with_body=False)}
    change(given)
    del given["other"], given["closed"]
    with pytest.raises(BadSeal, match=r"does not lead to the sealed root|makes no sense"):
        check_proof(given, KEYS)


def test_b05_a_publisher_cannot_plant_a_commitment_in_shown_bytes(tmp_path: Path) -> None:
    """The headers of a message hold a commitment whose opening the publisher knows. A proof that opens it would show a
    record that was never stored."""
    salt, lie = bytes(32), b"a lie that was never published"
    planted = b"\x40" + hashlib.sha256(salt + lie).digest()
    part = sealed(tmp_path / "data", message(b"42", b"\0\0" + planted))
    given = proof_of(part, 0)
    true = check_proof(given, KEYS).record
    before, behind = base64.b64decode(given["record"][0]["shown"]).split(planted)
    forged = copy.deepcopy(given)
    forged["record"] = [
        {"shown": base64.b64encode(before).decode()},
        {"form": "bytes", "withheld": base64.b64encode(lie).decode(), "salt": salt.hex()},
        {"shown": base64.b64encode(behind).decode()},
        *given["record"][1:],
    ]
    assert planted in true
    with pytest.raises(BadSeal, match="does not lead to the sealed root"):
        check_proof(forged, KEYS)


def test_the_places_of_commitments_are_in_what_is_hashed() -> None:
    """Without them the split of the test above would lead to the root, too."""
    commitments = Commitments(bytes(32), WithheldFields(envelope_fingerprint()), 0)
    value = record(message(b"42"))
    commitment = hashlib.sha256(commitments.salt(9) + b"42").digest()
    shown = value[: -len(b"42") - 1] + b"\x40" + commitment
    entry = b"\1" + PLACE.pack(0, len(shown) - 32, 2) + shown
    [leaf] = commitments.leaves(9, [value])
    assert leaf == leaf_hash(entry)
    assert leaf != leaf_hash(b"\0" + shown)


def test_a_stretch_with_another_secret_is_not_proven(part: SegmentedPartition, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    [other] = [each for each in segmented(tmp_path / "copy") if each.name == "queues-0"]
    for path in other.directory.glob("_*.se*"):
        path.unlink()
    list(sealing.seal(other, KEY, 5_000))
    secrets = [next(each.directory.glob("_*.secret")) for each in (part, other)]
    secrets[0].write_bytes(secrets[1].read_bytes())
    [harm] = [each.harm for each in check([part], KEYS) if each.harm is not None]
    assert "the secret of the seal of offsets 0 to 3 is gone" in harm.what
    with pytest.raises(BadSeal, match="is gone: it proves no single record"):
        prove(part, 0)


def test_two_proofs_with_and_without_a_body_are_of_one_record(part: SegmentedPartition) -> None:
    proven: list[Proven] = [check_proof(proof_of(part, 0, each), KEYS) for each in (True, False)]
    assert proven[0].digest == proven[1].digest
    assert len({tuple(proof_of(part, 0, each)["path"]) for each in (True, False)}) == 1
    assert all(each.record.startswith(HEADER) for each in proven)
    assert len(list(itertools.chain.from_iterable(each.withheld for each in proven))) == 1
