"""The names of our own verbs, in the order of `penstock --help`."""

from __future__ import annotations

from penstock import Components

_FILES = {
    "changelog": "transfer",
    "config": "describe",
    "consume": "topics",
    "health": "status",
    "lag": "status",
    "produce": "topics",
    "reshard": "transfer",
    "resume": "pause",
}
"""Of verbs that are in the file of another one."""
VERBS: Components = {
    verb: f"penstock.plugins.operate.cli.{_FILES.get(verb, verb)}:{verb}"
    for verb in (
        "run",
        "describe",
        "config",
        "lag",
        "status",
        "top",
        "health",
        "pause",
        "resume",
        "visit",
        "reset",
        "plan",
        "changelog",
        "state",
        "serve",
        "standby",
        "stores",
        "reshard",
        "dlq",
        "topics",
        "produce",
        "consume",
        "copy",
        "plugins",
        "new",
        "simulate",
        "profile",
        "warmup",
    )
}
