"""Effects of the machine, each with the line that describes it."""

from rewindmq.projections.machine.data import effects as fx
from rewindmq.projections.machine.data.declaration import Declaration
from rewindmq.projections.machine.data.effects import Effect
from rewindmq.projections.machine.data.queue import Queue

Q = Queue(Declaration("/", "orders", 0, "classic"))
ABROAD = Queue(Declaration("prod", "a b\n", 3, "quorum"))
EFFECTS: tuple[tuple[Effect, str], ...] = (
    (fx.Keep(Q, (12,)), "[orders] keep 12"),
    (
        fx.Forget(Q, (12, 13, 14, 20), "expired", 0, "argument x-message-ttl"),
        "[orders] expired: 12-14 20 (argument x-message-ttl)",
    ),
    (fx.Forget(Q, (1,), "acked", 100, ""), "[orders] acked by 100: 1"),
    (fx.Refuse(Q, 5, "policy lim.max-length"), "[orders] refuse 5 (policy lim.max-length)"),
    (fx.Deliver(Q, (5,), 100, False, 0, False), "[orders] deliver 5 to 100"),
    (fx.Deliver(Q, (5, 6, 8), 100, False, 0, False), "[orders] deliver 5-6 8 to 100"),
    (fx.Deliver(Q, (5,), 100, True, 2, True, 3), "[orders] deliver 5 to 100, redelivered, count 2, acquired 3, final"),
    (fx.FetchReply(Q, 5, 100, False, 0, False, 7), "[orders] give 5 to 100, 7 left"),
    (fx.FetchReply(Q, -1, 100, False, 0, False, 0), "[orders] give nothing to 100"),
    (fx.Requeue(Q, (5, 6), 100, "nack"), "[orders] back from 100, nack: 5-6"),
    (fx.Requeue(Q, (5,), 0, "delayed"), "[orders] back, delayed: 5"),
    (fx.Delay(Q, 5, 100, "nack", 9_000), "[orders] back from 100, nack: 5, ready again at 9000 ms"),
    (
        fx.DeadLetter(Q, (5,), "expired", 1, "dlx", None, False, False),
        "[orders] dead letter 1: 5, expired, to 'dlx', at most once",
    ),
    (
        fx.DeadLetter(Q, (5, 6, 9), "maxlen", 2, "", "dead", True, True),
        "[orders] dead letter 2-4: 5-6 9, maxlen, to '' key dead, at least once, refused",
    ),
    (fx.Release(Q, (5,)), "[orders] release 5"),
    (fx.CancelConsumer(Q, 100), "[orders] cancel 100"),
    (fx.QueueGone(ABROAD, "expired", 4), "[prod 'a b\\n'] gone: expired, with 4 ready"),
    (fx.Duplicate(Q, 5), "[orders] duplicate 5"),
    (fx.Quarantine(5, "Acked", "no queue 'q'"), "quarantined: no queue 'q'"),
)
