"""The hash chain: its definition, byte for byte, and that it is a function of the history alone."""

import hashlib
import struct
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewindmq.engine.log.chain import RUN, TopicChain, first_chain, group_start, link
from rewindmq.schemas.single_object import HEADER

PARTITION = "queues-0"
BEGIN = first_chain(PARTITION)
GAPS, TIMES, PREFIX = 1, 2, 4

Row = tuple[int, int, bytes | None]


def written_out(chain: bytes, rows: Sequence[Row]) -> bytes:
    """The link of these records, field by field as the head of chain.py has it."""
    offsets = [offset for offset, _, _ in rows]
    values = [value or b"" for _, _, value in rows]
    prefix = values[0][:10]
    shared = len(prefix) == 10 and all(value.startswith(prefix) for value in values)
    gaps = offsets != list(range(offsets[0], offsets[0] + len(rows)))
    content = chain + struct.pack(
        ">QIB", offsets[0], len(rows), TIMES | (PREFIX if shared else 0) | (GAPS if gaps else 0)
    )
    if gaps:
        content += b"".join(struct.pack("<I", offset - offsets[0]) for offset in offsets)
    content += b"".join(struct.pack("<q", time_ms) for _, time_ms, _ in rows)
    rests = [value[10:] for value in values] if shared else values
    content += (prefix if shared else b"") + b"".join(struct.pack("<I", len(rest)) for rest in rests) + b"".join(rests)
    return hashlib.sha256(content).digest()


VALUES = st.one_of(st.none(), st.binary(max_size=15), st.binary(max_size=5).map(lambda rest: HEADER + rest))


@st.composite
def topics(draw: st.DrawFn) -> list[Row]:
    """Records of a topic with gaps, among them some that are longer than a group."""
    rows: list[Row] = []
    offset = 0
    for gap, time_ms, value in draw(
        st.lists(
            st.tuples(st.sampled_from([0, 0, 0, 1, RUN - 1, RUN, 3 * RUN]), st.integers(-(10**12), 10**12), VALUES),
            min_size=1,
            max_size=40,
        )
    ):
        offset += gap
        rows.append((offset, time_ms, value))
        offset += 1
    return rows


@given(topics())
def test_the_chain_of_a_topic_is_written_out_group_by_group(rows: list[Row]) -> None:
    links, chain = TopicChain(0, BEGIN), BEGIN
    for row in rows:
        links.add(*row)
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(group_start(row[0]), []).append(row)
    for group in groups.values():
        chain = written_out(chain, group)
    assert links.ends_at(rows[-1][0] + 1) == chain


@given(topics(), st.data())
def test_the_chain_at_an_offset_does_not_depend_on_later_records(rows: list[Row], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(rows)))
    asked, straight = TopicChain(0, BEGIN), TopicChain(0, BEGIN)
    for row in rows[:cut]:
        asked.add(*row)
        straight.add(*row)
        asked.ends_at(row[0] + 1)
    end = rows[cut - 1][0] + 1
    assert asked.ends_at(end) == straight.ends_at(end)
    begin = TopicChain(asked.offset, asked.chain)
    for row in rows:
        if row[0] >= begin.offset:
            begin.add(*row)
        if row not in rows[:cut]:
            asked.add(*row)
            straight.add(*row)
    behind = rows[-1][0] + 1
    assert asked.ends_at(behind) == straight.ends_at(behind) == begin.ends_at(behind)


def test_the_link_of_a_block_goes_over_what_is_stored() -> None:
    records = [b"first", b"", b"third"]
    lengths = array("I", map(len, records)).tobytes()
    wanted = hashlib.sha256(
        BEGIN + struct.pack(">QIB", 7, 3, PREFIX) + HEADER + struct.pack("<III", 5, 0, 5) + b"firstthird"
    ).digest()
    assert link(BEGIN, 7, HEADER, lengths, records) == wanted
    assert link(BEGIN, 7, HEADER, lengths, [memoryview(b"firstthird")]) == wanted


@pytest.mark.parametrize(
    "other",
    [
        [(0, 5, HEADER + b"a"), (1, 6, HEADER + b"c")],
        [(0, 5, HEADER + b"a"), (1, 7, HEADER + b"b")],
        [(0, 5, HEADER + b"a"), (2, 6, HEADER + b"b")],
        [(0, 5, HEADER + b"ab"), (1, 6, HEADER)],
        [(0, 5, HEADER + b"a")],
        [(0, 5, HEADER[:-1] + b"\x00a"), (1, 6, HEADER + b"b")],
    ],
)
def test_other_records_have_another_chain(other: list[Row]) -> None:
    chains = []
    for rows in ([(0, 5, HEADER + b"a"), (1, 6, HEADER + b"b")], other):
        links = TopicChain(0, BEGIN)
        for row in rows:
            links.add(*row)
        chains.append(links.ends_at(3))
    assert chains[0] != chains[1]
