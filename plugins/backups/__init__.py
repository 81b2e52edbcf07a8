"""Backups of the state of all tasks and the way back from them, and the first content of stores."""

from .backup import back_up
from .catalog import Backup, Catalog
from .first_content import fill_store
from .restore_plan import RestorePlan, plan_restore, verify_backup
from .restoring import restore_backup

__all__ = [
    "Backup",
    "Catalog",
    "RestorePlan",
    "back_up",
    "fill_store",
    "plan_restore",
    "restore_backup",
    "verify_backup",
]
