"""Following a log: by its own follower, if it has one."""

from __future__ import annotations

from penstock.log import LogRecords
from penstock.log.follower import Follower
from penstock.plugins.logs.following import FetchFollower


def open_follower(log: LogRecords) -> Follower:
    """Return a new follower of a log; its caller closes it."""
    return log.follow() or FetchFollower(log)
