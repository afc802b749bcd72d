"""Several processes prove a long partition."""

from pathlib import Path

import pytest

from rewindmq.engine.log.contract import CorruptLog
from rewindmq.engine.log.embedded import verify
from rewindmq.engine.log.embedded.segments import segment_files
from rewindmq.engine.log.embedded.verify import verify_chain
from tests.support.records import SCHEMA_BYTES, make_log


def test_a_long_partition_is_proven_by_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = make_log(tmp_path, [10] * 20, segment_bytes=SCHEMA_BYTES + 2_000)
    monkeypatch.setattr(verify, "PARALLEL_BYTES", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert verify.verify_chain_in_parallel(directory) == list(verify_chain(directory))
    path = segment_files(directory)[1]
    content = bytearray(path.read_bytes())
    content[-300] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(CorruptLog, match="its bytes do not match its checksum") as refused:
        verify.verify_chain_in_parallel(directory)
    assert refused.value.file == path
