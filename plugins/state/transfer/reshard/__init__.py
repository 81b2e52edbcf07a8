"""Resharding: gives an application another number of partitions, with its state."""

from .plan import ReshardPlan, plan_reshard
from .resharding import accept, reshard, undo

__all__ = ["ReshardPlan", "accept", "plan_reshard", "reshard", "undo"]
