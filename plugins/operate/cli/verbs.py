"""The names of our own verbs, in the order of `penstock --help`."""

from __future__ import annotations

from penstock import Components

VERBS: Components = {
    verb: f"penstock.plugins.operate.cli.{verb}:{verb}"
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
        "plugins",
        "new",
        "simulate",
        "profile",
        "warmup",
    )
}
