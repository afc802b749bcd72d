"""From an exchange and a routing key to queues. Read router.py first.

router.py              routes of a publish, remembered     content.py             headers, as far as routing reads them
exchange_types.py      bindings by exchange type           delayed_exchanges.py   messages that wait
topic_trie.py          bindings of topic exchanges         portions.py            long routes, in turns
homes.py               the partition of a name             deduplication.py       exchanges that drop duplicates
dead_letters.py        sends dead letters on, once         death_headers.py       their x-death headers
letters.py             letters that wait, by queue
firehose.py            copies for amq.rabbitmq.trace
event_exchange.py      events for amq.rewindmq.event     event_headers.py      their keys and headers
"""
