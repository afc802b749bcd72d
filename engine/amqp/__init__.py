"""AMQP 0-9-1 for clients: bytes in, calls into the broker, bytes out. Only server.py has sockets.

server.py             sockets and timers
connection.py         one connection: frames, errors, closing, channels, credit
connection_state.py   its states                read_gate.py          every reason why it is not read from
handshake.py          login, tuning, vhost      publish_hold.py       publishes during an alarm
credentials.py        the client's token
frames.py             bytes -> frames, in place; gives whole publishes and acks to their channel (hot)
channel.py            one channel               channel_methods.py    its methods
publish_path.py       its publishes: judged, routed, logged (hot)
basic_publish.py      a publish and its route   transactions.py       publishes and acks until tx.commit
settlement.py         delivery tags and acks    confirms.py           publisher confirms
basic_consume.py      a consumer begins         lookahead.py          messages ready at the node, on Kafka
consumer.py           deliveries, credit (hot)  consumer_timeout.py   deliveries that are unacked for too long
output.py             frames until they are written, in their order
methods.py            methods as frames         method_fields.py      names and fields of all methods
sasl.py               PLAIN, AMQPLAIN, EXTERNAL erlang.py             bytes as Erlang prints them
"""
