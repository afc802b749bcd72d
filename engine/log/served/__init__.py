"""The log of one machine, served by the process that writes it to worker processes, over a Unix socket.

Contract: `rewindmq.engine.log.shared_contract`. One side is the log's process (`server.py`), the other a worker's log
(`client.py`). What they say to each other is in `wire_frames.py`.
"""
