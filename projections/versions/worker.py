"""Runs the fold in its own process, so that it can be another version's (compare.py asks it).

It is run as a file, with the version's directory in PYTHONPATH, from which it imports the machine and the decoder, and
nothing else of RewindMQ. So this file has its own fold loop, because `drive` of projections/replay.py is only in this
version. Requests arrive on stdin, in network order. FOLD has no answer; the others have an answer of one line each:

    BEGIN      length (8 bytes), state of a partition as Machine.load takes it (marshal). Answer: empty, or why not
    FOLD       offset (8 bytes), milliseconds (8; -1: the envelope's own), length (4), record
    STAND      a digest of the state, and a digest of all effects since the beginning
    DESCRIBE   JSON: "queues", the fields of each that are numbers or texts; "effects" of the record folded last;
               "ended", the error at which this fold stopped, or empty
"""

import hashlib
import importlib
import json
import marshal
import os
import struct
import sys
from collections.abc import Sequence
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from typing import Any, BinaryIO

HEAD = struct.Struct("!qqI")
SIZE = struct.Struct("!Q")
BEGIN, FOLD, STAND, DESCRIBE = b"B", b"F", b"S", b"T"
OWN_TIME = -1


def main(partition: str, shared: bool, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until stdin ends."""
    sys.path_hooks.insert(0, sources_only)

    def found(module: str) -> Any:
        return importlib.import_module(f"rewindmq.{module}")

    codec = found("schemas.codec")
    decode = (found("schemas.service_records").SharedDecoder if shared else codec.Decoder)().decode
    machines = found("projections.machine.machine")
    machine = machines.Machine(partition)
    effects: list[Any] = []
    so_far = hashlib.blake2b()
    ended = ""
    while request := requests.read(1):
        if request == FOLD:
            offset, time_ms, length = HEAD.unpack(requests.read(HEAD.size))
            record = requests.read(length)
            effects.clear()
            if ended:
                continue
            try:
                timestamp_ms, actor, event = decode(record, False)
                machine.apply(offset, timestamp_ms if time_ms == OWN_TIME else time_ms, actor, event, effects)
            except codec.UndecodableRecord:
                machine.skip(offset)
            except Exception as error:
                ended = f"{type(error).__name__}: {error}"
                so_far.update(ended.encode())
            for effect in effects:
                so_far.update(effect_text(effect).encode())
        elif request == BEGIN:
            (length,) = SIZE.unpack(requests.read(SIZE.size))
            try:
                machine, refusal = machines.Machine.load(partition, *marshal.loads(requests.read(length))), ""
            except Exception as error:
                refusal = f"{type(error).__name__}: {error}".replace("\n", " ")
            answers.write(refusal.encode() + b"\n")
            answers.flush()
        elif request == STAND:
            answers.write(f"{machine.digest()} {so_far.hexdigest()}\n".encode())
            answers.flush()
        else:
            queues = {f"{queue.vhost}/{queue.name}": fields_of(queue) for queue in machine.queues()}
            answer = {"queues": queues, "effects": [effect_text(effect) for effect in effects], "ended": ended}
            answers.write(json.dumps(answer, allow_nan=False).encode() + b"\n")
            answers.flush()


def sources_only(folder: str) -> FileFinder:
    """Return a path hook that finds only .py files in the version's folders. Raises ImportError for any other folder.

    An extension module beside its source would be another build of it, if not of another source."""
    version = os.path.abspath(os.environ["PYTHONPATH"])
    if not folder.startswith(os.path.join(version, "rewindmq")):
        raise ImportError("no folder of the version", path=folder)
    return FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES))


def effect_text(effect: Any) -> str:
    """Return an effect as text: a queue by its name, ids unchanged.

    This function renders the effects of both versions, instead of each version's `describe`, because another wording
    would look like another effect."""
    shown = (f"{name}={field_text(getattr(effect, name))}" for name in effect.__slots__)
    return f"{type(effect).__name__}({', '.join(shown)})"


def field_text(value: Any) -> str:
    """Return a field of an effect as text. A queue is its vhost and name."""
    if hasattr(value, "queue_id") and hasattr(value, "vhost"):
        return f"{value.vhost}/{value.name}"
    return str(list(value)) if isinstance(value, Sequence) and not isinstance(value, str) else repr(value)


def fields_of(queue: Any) -> dict[str, Any]:
    """Return the fields of a queue that are numbers or texts, by name."""
    return {name: value for name, value in sorted(vars(queue).items()) if isinstance(value, int | str)}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "shared", sys.stdin.buffer, sys.stdout.buffer)
