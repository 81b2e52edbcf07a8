"""The command line `penstock`: one file a verb.

Imports core, and other plugins by name. A verb's libraries are imported when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

try:
    from penstock import Components, hookimpl
except ImportError as error:
    # `penstock` of this environment is not ours.
    raise SystemExit(
        "Error: the module that `import penstock` finds is another project's. That project's distribution is named "
        "penstock, and this one's penstock-streams: uninstall both, then install penstock-streams again "
        f"({error})"
    ) from None

from .verbs import VERBS


@hookimpl
def penstock_cli_commands() -> Components:
    """Return our own verbs, in the order of `penstock --help`, by the same hook as other packages' verbs."""
    return VERBS


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with `arguments` (None: those of this process) and leave the process with its exit code."""
    from .group import penstock

    penstock.main(arguments if arguments is None else list(arguments), prog_name="penstock")
    raise SystemExit(0)
