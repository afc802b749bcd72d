"""The follower: a machine that copies the synced log of another one, and can take over.

client.py      asks the leader (engine/http/followers.py answers)
log_copy.py    the copy on this disk: the same bytes as the leader's
alignment.py   makes an old leader's directory a copy: what the history does not have is kept aside
node.py        a read-only broker that folds along
follower.py    the loop: ask, write, sync, acknowledge; what lies beside the log
promotion.py   makes a copy the leader
start.py       a directory becomes a copy, up to a whole moment
refusal.py     a leader that refuses its follower
"""
