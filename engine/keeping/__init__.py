"""The keeping of history over years: archive, tiers, trims, recovery, seals. The log below knows nothing of it.

archive/            a history in object storage             seals/               signed statements about ranges
location.py         where a history is, and its readers     archive_process.py   the process that archives and trims
tiers.py, topic_tiers.py   what was archived and removed, read on; single_records.py reads records here and there
local_space.py, local_limits.py, topic_space.py   archived history leaves the disk, or Kafka
keep_history.py     trims what is too old                   trim.py              a trim, step by step
topic_floors.py     what Kafka's metadata says of trims
trim_rules.py       what may go                             trim_audit.py        the audit of what goes
archive_states.py   archived states of a partition          topic_source.py      topics, as the archiver reads them
retention.py        Kafka's retention against the archive   cut_back.py          records of an old branch, kept aside
port.py             what a trim needs of a history: in_directory.py and in_topics.py give it
"""
