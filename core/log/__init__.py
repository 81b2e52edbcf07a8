"""The log: topics with partitions, committed positions and leases, on Kafka or elsewhere."""

from .committer import ENGINE_STATE_BYTES, Commit, TaskCommitter
from .follower import Follower
from .log import Lease, Log, LogCommits, LogFactory, LogLeases, LogRecords, LogTopics, TakesPath, TopicInfo

__all__ = [
    "ENGINE_STATE_BYTES",
    "Commit",
    "Follower",
    "Lease",
    "Log",
    "LogCommits",
    "LogFactory",
    "LogLeases",
    "LogRecords",
    "LogTopics",
    "TakesPath",
    "TaskCommitter",
    "TopicInfo",
]
