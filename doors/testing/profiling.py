"""The profiler: `profile` runs a program aside on real records, and says where its time goes."""

from penstock.plugins.testing.profiling import Function, NodeProfile, Profile, StoreProfile, StoreUse, profile

__all__ = ["Function", "NodeProfile", "Profile", "StoreProfile", "StoreUse", "profile"]
