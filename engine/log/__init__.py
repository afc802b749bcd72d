"""The log: partitions of records, on a disk of the broker's own or in Kafka. Read contract.py first.

contract.py          what every log promises         shared_contract.py   what a log of several writers promises
location.py          where a history is
embedded/            files and group commit          kafka/               topics in Kafka
seals/               signed statements about it      simulated/           both logs in memory, with faults
archive/             object storage                  single_records.py    records that are far apart
tiers.py             local, then the archive         topic_tiers.py       Kafka, then the archive
"""
