"""The frame parser alone: it knows where frames begin and end, not what they mean (engine/amqp/frames.py)."""

from itertools import pairwise

import pytest

from rewindmq.engine.amqp.frames import PAUSE_CHECK_BYTES, FrameParser
from rewindmq.engine.amqp.read_gate import Pause, ReadGate
from rewindmq.engine.errors import FrameError
from tests.support.amqp_wire import method, publish, raw_frame


class RecordedChannel:
    """A channel whose publishes are known by their method frames."""

    number, ready = 1, True

    def __init__(self, receiver: "Recorder") -> None:
        self.receiver = receiver
        self.publish_memo: dict[bytes, str] = {}

    def learn_whole(self, payload: bytes) -> str | None:
        if not self.receiver.takes_whole:
            return None
        self.publish_memo[payload] = "a publish"
        return "a publish"

    def publish(self, publish: str, raw: bytes, body: bytes) -> None:
        self.receiver.got.append((publish, body))
        if body == self.receiver.shuts_at:
            self.receiver.gate.close(Pause.TURN)
        if body == b"bad":
            raise KeyError(body)

    def takes_runs(self, publish: str, raw: bytes) -> bool:
        return self.receiver.takes_runs

    def publish_run(self, publish: str, raw: bytes, bodies: list[bytes]) -> None:
        self.receiver.runs.append(len(bodies))
        for body in bodies:
            self.publish(publish, raw, body)

    def ack(self, tag: int, multiple: bool) -> None:
        self.receiver.got.append(("ack", tag, multiple))

    def ack_each(self, tags: list[int]) -> None:
        self.receiver.acks.append(len(tags))
        self.receiver.got += [("ack", tag, False) for tag in tags]
        if 0 in tags:
            raise KeyError(0)


class Recorder:
    def __init__(self) -> None:
        self.got: list[object] = []
        self.takes_whole = True
        self.takes_runs = False
        self.runs: list[int] = []  # the number of publishes in each run
        self.acks: list[int] = []  # the number of acks that came together
        self.shuts_at = b""
        self.gate = ReadGate(lambda: None)
        self.parser: FrameParser[str] = FrameParser({1: RecordedChannel(self)}, self, self.gate)
        self.parser.max_content = 4_096

    def must_pause(self) -> bool:
        return self.gate.shut

    def frame(self, kind: int, number: int, payload: bytes) -> None:
        self.got.append((kind, number, payload))

    def failed(self, number: int, index: int, error: Exception) -> None:
        self.got.append((number, index, type(error)))

    def frame_error(self, error: FrameError) -> None:
        self.got.append(type(error))


STREAM = b"".join(
    [
        raw_frame(8, 0, b""),
        publish(1, "", "q", b"one"),
        method(1, "Basic.Ack", delivery_tag=7, multiple=True),
        publish(1, "", "q", b"two"),
        publish(1, "", "q", b"bad"),
        publish(1, "", "q", b"six"),
    ]
)
GOT = [
    (8, 0, b""),
    ("a publish", b"one"),
    ("ack", 7, True),
    ("a publish", b"two"),
    ("a publish", b"bad"),
    (1, 60 << 16 | 40, KeyError),
    ("a publish", b"six"),
]


def test_whole_publishes_and_acks_go_to_their_channel_others_elsewhere() -> None:
    recorder = Recorder()
    recorder.parser.parse(STREAM)
    assert recorder.got == GOT
    assert recorder.parser.rest == b""


def test_a_publish_in_pieces_goes_frame_by_frame() -> None:
    recorder = Recorder()
    frames = publish(1, "", "q", b"one")
    for start, end in pairwise([0, 30, len(frames) - 2, len(frames)]):
        recorder.parser.parse(frames[start:end])
    assert [each[0] for each in recorder.got if isinstance(each, tuple)] == [1, 2, 3]


def test_a_publish_that_is_not_taken_whole_goes_frame_by_frame() -> None:
    recorder = Recorder()
    recorder.takes_whole = False
    recorder.parser.parse(publish(1, "", "q", b"one"))
    assert [each[0] for each in recorder.got if isinstance(each, tuple)] == [1, 2, 3]


def test_a_gate_that_is_shut_stops_the_parser_behind_the_frame() -> None:
    for shuts_at, came in ((b"one", 2), (b"two", 4), (b"six", 7)):
        recorder = Recorder()
        recorder.shuts_at = shuts_at
        recorder.parser.parse(STREAM)
        assert recorder.got == GOT[:came]
        recorder.parser.parse(b"")
        assert recorder.got == GOT[:came]
        recorder.gate.open(Pause.TURN)
        recorder.parser.parse(b"")
        assert recorder.got == GOT


def test_nothing_is_read_after_the_place_in_the_stream_is_lost() -> None:
    for broken in (raw_frame(8, 0, b"")[:-1] + b"\x00", b"\x01\x00\x01\x7f\xff\xff\xff\x00"):
        recorder = Recorder()
        recorder.parser.parse(broken + STREAM)
        assert recorder.got == [FrameError]
        assert recorder.parser.deaf


BODIES = [b"%d" % number * (1 + number % 7) for number in range(40)]
RUN = b"".join(publish(1, "", "q", body) for body in BODIES)


def in_runs() -> Recorder:
    recorder = Recorder()
    recorder.takes_runs = True
    return recorder


def test_publishes_that_differ_in_their_bodies_come_as_a_run() -> None:
    recorder = in_runs()
    recorder.parser.parse(RUN)
    assert recorder.got == [("a publish", body) for body in BODIES]
    assert recorder.runs == [len(BODIES) - 2], "the first two are learned from"


@pytest.mark.parametrize("size", [1, 7, 61, 200, 1_000])
def test_a_stream_in_any_pieces_gives_the_same_publishes(size: int) -> None:
    recorder = in_runs()
    for start in range(0, len(RUN), size):
        recorder.parser.parse(RUN[start : start + size])
    whole = [each[1] for each in recorder.got if isinstance(each, tuple) and each[0] == "a publish"]
    pieces = sum(1 for each in recorder.got if isinstance(each, tuple) and each[0] == 1)  # method frames
    assert len(whole) + pieces == len(BODIES)
    assert [body for body in BODIES if body in whole] == whole


@pytest.mark.parametrize(
    "other",
    [
        publish(1, "", "other", b"x"),
        publish(1, "", "q", b""),
        publish(1, "", "q", b"x")[:-1] + b"\x00",  # without its end
        publish(1, "", "q", b"xy").replace(b"\x00\x00\x00\x02xy", b"\x00\x00\x00\x01x\xcey"),  # two sizes
    ],
    ids=["another key", "no body", "no end", "two sizes"],
)
def test_a_run_ends_before_what_is_not_alike(other: bytes) -> None:
    alone = Recorder()
    together = in_runs()
    for recorder in (alone, together):
        recorder.parser.parse(RUN + other + RUN)
    assert together.got == alone.got
    assert together.runs[0] == len(BODIES) - 2


def test_a_run_ends_where_the_receiver_is_asked_again() -> None:
    recorder = in_runs()
    body = b"x" * 1_000
    recorder.parser.parse(publish(1, "", "q", body) * 30)
    assert sum(recorder.runs) == 28
    assert max(recorder.runs) <= PAUSE_CHECK_BYTES // 1_000 + 1


def ack(tag: int, channel: int = 1, **more: bool) -> bytes:
    return method(channel, "Basic.Ack", delivery_tag=tag, **more)


TAGS = [3, 4, 5, 2, 1 << 63, 9, 9]


def test_acks_that_follow_each_other_come_together() -> None:
    recorder = Recorder()
    recorder.parser.parse(b"".join(ack(tag) for tag in TAGS))
    assert recorder.got == [("ack", tag, False) for tag in TAGS]
    assert recorder.acks == [len(TAGS)]


@pytest.mark.parametrize(
    ("other", "ends"),
    [
        (ack(7, multiple=True), [("ack", 7, True)]),
        (ack(7, channel=2), [(1, 2, ack(7)[7:-1])]),
        (method(1, "Basic.Nack", delivery_tag=7), [(1, 1, method(1, "Basic.Nack", delivery_tag=7)[7:-1])]),
        (publish(1, "", "q", b"x"), [("a publish", b"x")]),
        (ack(7)[:-1] + b"\x00", [FrameError]),
        (ack(7)[:-9], []),
    ],
    ids=["multiple", "another channel", "a nack", "a publish", "no end", "incomplete"],
)
def test_acks_end_before_another_frame(other: bytes, ends: list[object]) -> None:
    recorder = Recorder()
    recorder.parser.parse(b"".join(ack(tag) for tag in TAGS) + other)
    assert recorder.got == [("ack", tag, False) for tag in TAGS] + ends
    assert recorder.acks == [len(TAGS)]
    assert recorder.parser.rest == (other if not ends else b"")


def test_acks_end_where_the_receiver_is_asked_again() -> None:
    recorder = Recorder()
    recorder.parser.parse(b"".join(ack(tag) for tag in range(1, 1_001)))
    assert recorder.got == [("ack", tag, False) for tag in range(1, 1_001)]
    assert max(recorder.acks) == PAUSE_CHECK_BYTES // 21 + 1


def test_an_error_of_an_ack_is_told_once() -> None:
    recorder = Recorder()
    recorder.parser.parse(ack(1) + ack(0) + raw_frame(8, 0, b""))
    assert recorder.got[2:] == [(1, 60 << 16 | 80, KeyError), (8, 0, b"")]
