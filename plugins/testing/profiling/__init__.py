"""The profiler: where the time of a program goes, node by node and phase by phase, on real records."""

from __future__ import annotations

from .functions import Function
from .profile import profile
from .result import NodeProfile, Profile, StoreProfile, StoreUse

__all__ = ["Function", "NodeProfile", "Profile", "StoreProfile", "StoreUse", "profile"]
