"""The data of the machine: queues, consumers, the orders of messages, effects. Read queue.py first.

queue.py                a queue, and the holders of its messages         effects.py   outcomes of events, as data
message_order.py, priority_order.py, delayed_order.py, stream.py         which message is next, by kind of queue
restored_ids.py         messages that were brought back                  message_word.py   the bits kept of a message
id_windows.py           ids of messages, to drop duplicates              outbox.py    dead letters that wait to leave
declaration.py          all that a queue's declaration decided           reasons.py   why messages and queues go
"""
