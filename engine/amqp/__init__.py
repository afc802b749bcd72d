"""AMQP 0-9-1 for clients, sans I/O: bytes in, calls into the broker, bytes out (engine/amqp/server.py has the sockets).

frames.py         bytes -> frames, in place; takes basic.publish and basic.ack by itself (hot)
connection.py     handshake, errors and closing, channels, heartbeats, publishing held back
channel.py        one channel: publishing, and what it remembers;  channel_methods.py: all its other methods
publishing.py     where a basic.publish goes
settlement.py     delivery tags and acks          confirms.py     publisher confirms
consumer.py       deliveries and credit (hot)     output.py       what is to be written, and in which order
methods.py        all other methods as frames     method_fields.py   names and fields of all methods
sasl.py           PLAIN, AMQPLAIN, EXTERNAL       erlang.py       texts as Erlang prints them
transactions.py   what waits for tx.commit        consumer_timeout.py      deliveries that are unacked for too long
"""
