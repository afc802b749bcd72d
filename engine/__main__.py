"""`python -m rewindmq.engine --data DIR ...`: the same as `rewindmq start`."""

import sys

from rewindmq.engine.cli.main import main

if __name__ == "__main__":
    main(["start", *sys.argv[1:]])
