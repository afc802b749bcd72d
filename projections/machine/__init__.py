"""The queue machine: how the state of queues follows from the events of one log partition. Start at `machine.py`."""
