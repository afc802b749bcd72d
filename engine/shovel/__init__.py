"""`rewindmq shovel`: moves a queue's messages from one broker to another, as RabbitMQ's shovel plugin does.

It is a client of both brokers, in a separate process: no broker imports this room.

address.py   where a broker is               header.py    adds x-shovelled to a message's properties
link.py      a connection with a channel     account.py   which messages are on their way, and which arrived
session.py   moves while both links stand    shovel.py    session after session, and the figures
"""
