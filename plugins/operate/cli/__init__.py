"""The command line `penstock`: a file for each verb, or for verbs of one topic.

Imports core, and other plugins by name. A verb's libraries are imported when it runs.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from typing import NoReturn

try:
    from penstock import Components, hookimpl
except ImportError as error:
    # `penstock/__init__.py` of this environment is not ours.
    print(
        "Error: what `import penstock` finds is not this project's, whose distribution is penstock-streams. Another "
        "project's is named penstock, and replaces files of this one, also when it is uninstalled: uninstall both, "
        f"then install penstock-streams again ({error.msg})",
        file=sys.stderr,
    )
    raise SystemExit(2) from None

from .verbs import VERBS


@hookimpl
def penstock_cli_commands() -> Components:
    """Return our own verbs, in the order of `penstock --help`, by the same hook as other packages' verbs."""
    return VERBS


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with `arguments` (None: those of this process) and leave the process with its exit code."""
    # What a command imports stays until its end: by Python's defaults it would be scanned for garbage again and again,
    # and once more at the end.
    gc.set_threshold(50_000, 20, 20)
    atexit.register(gc.freeze)
    from .group import penstock

    penstock.main(arguments if arguments is None else list(arguments), prog_name="penstock")
    raise SystemExit(0)
