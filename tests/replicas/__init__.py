"""Replicas of tasks' stores."""
