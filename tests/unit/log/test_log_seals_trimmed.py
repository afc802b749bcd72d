"""Seals of a log whose beginning was cut: what remains is checked, and what can't be checked is said (B-05)."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rewindmq.engine.keeping.seals import sealer as sealing
from rewindmq.engine.keeping.seals.in_files import SegmentedPartition, segmented
from rewindmq.engine.keeping.seals.seal import BadSeal, Seal, check_proof, fingerprint
from rewindmq.engine.keeping.seals.sealer import Checked, check, prove
from rewindmq.engine.log.contract import CorruptLog
from rewindmq.engine.log.embedded.cut import cut
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.log.embedded.verify import verify_chain
from tests.support.trimming import PARTITION, directory_of, starts, write_base, write_traffic

KEY = Ed25519PrivateKey.generate()
KEYS = {fingerprint(KEY.public_key()): KEY.public_key()}
STRETCH = 150


@pytest.fixture(autouse=True, scope="module")
def short_stretches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sealing, "STRETCH_RECORDS", STRETCH)
        yield


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("sealed")
    write_traffic(data)
    assert len(seal(data)) >= 5
    return data


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    """A sealed log that begins in the middle of the third stretch or so."""
    shutil.copytree(original, tmp_path / "data")
    data = tmp_path / "data"
    offset = next(at for at in starts(data) if at > 2 * STRETCH)
    write_base(data, offset)
    cut(data, PARTITION, offset)
    return data


def partition_in(data: Path) -> SegmentedPartition:
    return next(each for each in segmented(data) if each.name == PARTITION)


def seal(data: Path) -> list[Seal]:
    return [each.seal for each in sealing.seal(partition_in(data), KEY, 5_000)]


def checked(data: Path) -> list[Checked]:
    return list(check([partition_in(data)], KEYS))


def test_b05_seals_hold_for_what_remains_and_say_what_went(data: Path) -> None:
    start = starts(data)[0]
    found = checked(data)
    assert not [each.harm for each in found if each.harm]
    for each in found:
        assert each.seal is not None
        if each.seal.next_offset <= start:
            assert each.unchecked == "not checked: trimmed"
        elif each.seal.base_offset < start:
            base = each.seal.base_offset
            rest = f"holds from offset {start} on, by the hash chain; not checked: {base} to {start - 1}, trimmed"
            assert each.unchecked == rest
        else:
            assert each.unchecked == ""
    assert len({each.unchecked for each in found}) == 3


def test_b05_sealing_goes_on_behind_a_cut(data: Path) -> None:
    assert seal(data) == []
    for path in directory_of(data).glob("_*.seal"):
        path.unlink()
    made = seal(data)
    assert made[0].base_offset == starts(data)[0]
    assert not [each.harm for each in checked(data) if each.harm]


def test_b05_a_log_not_sealed_up_to_its_cut_is_sealed_from_there_on(original: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(original, data)
    seals = sorted(directory_of(data).glob("_*.seal"))
    for path in seals[2:]:
        path.unlink()
    offset = starts(data)[-2]
    write_base(data, offset)
    cut(data, PARTITION, offset)
    assert seal(data)[0].base_offset == offset
    assert not [each.harm for each in checked(data) if each.harm]


@pytest.mark.parametrize("number", [0, 1])
def test_b05_a_change_behind_the_cut_is_found(data: Path, number: int) -> None:
    path = segment_files(directory_of(data))[number]
    content = bytearray(path.read_bytes())
    content[-700] ^= 1
    path.write_bytes(content)
    [harm] = [each.harm for each in checked(data) if each.harm]
    assert "its bytes do not match its checksum" in harm.what


def test_b05_segments_that_are_gone_without_a_base_are_harm(data: Path) -> None:
    shutil.rmtree(data / "bases")
    harms = [each.harm.what for each in checked(data) if each.harm]
    assert any("the records before it are gone" in what for what in harms)


def test_b05_a_proof_needs_the_whole_stretch(data: Path) -> None:
    start = starts(data)[0]
    with pytest.raises(BadSeal, match=f"what is below offset {start} was trimmed"):
        prove(partition_in(data), start)
    whole = next(each.seal for each in checked(data) if each.seal and each.seal.base_offset >= start)
    assert check_proof(prove(partition_in(data), whole.base_offset), KEYS).digest == whole.digest


def test_a_base_of_another_history_is_no_beginning(data: Path) -> None:
    write_base(data, starts(data)[0], chain=bytes(range(32)))
    assert [each.harm for each in checked(data) if each.harm]
    with pytest.raises(CorruptLog, match="hash chain"):
        list(verify_chain(directory_of(data)))


def test_b05_seals_that_began_behind_one_trim_hold_behind_the_next(tmp_path: Path) -> None:
    """The first seal of a history was made when its beginning had gone already."""
    write_traffic(tmp_path)
    first = starts(tmp_path)[1]
    write_base(tmp_path, first)
    cut(tmp_path, PARTITION, first)
    made = seal(tmp_path)
    assert (made[0].base_offset, made[0].previous) == (first, "")
    assert not [each.harm for each in checked(tmp_path) if each.harm]
    later = next(at for at in starts(tmp_path) if at > made[1].next_offset)
    write_base(tmp_path, later)
    cut(tmp_path, PARTITION, later)
    assert not [each.harm for each in checked(tmp_path) if each.harm]
    for path in directory_of(tmp_path).glob(f"_{made[0].base_offset:020d}.*"):
        path.unlink()
    assert [str(each.harm) for each in checked(tmp_path) if each.harm], "a seal that is gone is found still"
