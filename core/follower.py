"""Keeps the documented import path of `Follower`, which is in log/."""

from .log.follower import Follower

__all__ = ["Follower"]
