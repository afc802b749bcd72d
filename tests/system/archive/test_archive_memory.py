"""An upload of a large object to a real S3 server takes no memory of the process."""

import os
import subprocess
import sys

import pytest

from tests.support.running import ROOT
from tests.support.s3.server import S3Server

pytestmark = pytest.mark.timeout(900)  # the first test may have to build the S3 server

MIB = 96
UPLOAD = """
import os, sys, tempfile, threading
from rewindmq.engine.keeping.archive.objects import open_objects

def anonymous_kib():
    return int(open("/proc/self/status").read().split("RssAnon:")[1].split()[0])

objects = open_objects(sys.argv[1])
objects.create("small", b"x")
with tempfile.TemporaryFile() as file:
    for _ in range(int(sys.argv[2])):
        file.write(os.urandom(1 << 20))
    before, largest, done = anonymous_kib(), 0, threading.Event()

    def watch():
        global largest
        while not done.wait(0.002):
            largest = max(largest, anonymous_kib())

    watching = threading.Thread(target=watch)
    watching.start()
    created = objects.create("large", file)
    done.set()
    watching.join()
print(created, objects.size("large"), (largest - before) // 1024)
"""


def test_an_upload_takes_no_memory(s3: S3Server) -> None:
    url = f"{s3.bucket('large')}/archive"
    done = subprocess.run(
        [sys.executable, "-c", UPLOAD, url, str(MIB)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | s3.environment,
    )
    assert done.returncode == 0, done.stderr
    created, size, grown_mib = done.stdout.split()
    assert (created, int(size)) == ("True", MIB << 20)
    assert int(grown_mib) < MIB // 4
