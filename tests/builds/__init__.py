"""Tests of the compiled build itself (rewindmq/builds.py). They run where it runs: `make test-compiled`."""
