"""Backups: a consistent set of the state of all tasks, in a place of its own, and the way back from it."""

from .backup import back_up
from .catalog import Backup, Catalog
from .restore_plan import RestorePlan, plan_restore, verify_backup
from .restoring import restore_backup

__all__ = ["Backup", "Catalog", "RestorePlan", "back_up", "plan_restore", "restore_backup", "verify_backup"]
