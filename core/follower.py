"""The documented path of `Follower`; it is in log/."""

from .log.follower import Follower

__all__ = ["Follower"]
