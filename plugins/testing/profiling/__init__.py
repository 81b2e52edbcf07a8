"""The profiler: where the time of a program goes, node by node and phase by phase, on real records."""

from __future__ import annotations

from .profile import NodeProfile, Profile, StoreProfile, StoreUse, profile
from .sampler import Function

__all__ = ["Function", "NodeProfile", "Profile", "StoreProfile", "StoreUse", "profile"]
