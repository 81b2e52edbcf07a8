"""The setting `acme.ignore_case`."""

from penstock import Setting
from penstock.settings.types import FLAG

IGNORE_CASE = Setting("acme.ignore_case", FLAG, False, "Whether `acme.dedupe` compares values without their case.")
