"""Backups of the state of all tasks and the way back from them, and the first content of stores."""

from .backup import back_up
from .catalog import Backup, Catalog, check_keep, prune
from .first_content import fill_store
from .restoring import RestorePlan, plan_check, plan_restore, restore_backup, verify_backup

__all__ = [
    "Backup",
    "Catalog",
    "RestorePlan",
    "back_up",
    "check_keep",
    "fill_store",
    "plan_check",
    "plan_restore",
    "prune",
    "restore_backup",
    "verify_backup",
]
