"""Verbs that only need the log import neither pyspark nor the Spark runtime."""

from __future__ import annotations

import subprocess
import sys

from .applications import counting, run
from .console import Console

PROGRAM = """
import sys
from penstock.plugins.operate.cli import main

for line in '''
    lag counting:application
    topics list
    produce words
    consume words
    stores list counting:application
    state gc counting:application --checkpoint checkpoint
    describe counting:application
    dlq show dead
    config counting:application
    reset counting:application --from-state --dry-run
    changelog move counting:application --from directory:elsewhere
    reset counting:application --yes
'''.strip().splitlines():
    try:
        main(line.split())
    except SystemExit as error:
        assert not error.code, f"{line}: {error.code}"
    spark = {name for name in sys.modules if name.startswith(("pyspark", "penstock.plugins.spark"))}
    spark -= {"penstock.plugins.spark", "penstock.plugins.spark.settings"}  # declarations, for whoever reads settings
    assert not spark, f"{line}: {spark}"
"""


def test_verbs_that_import_no_spark(console: Console) -> None:
    counting(console)
    run()
    console.write("checkpoint/metadata", '{"id": "any"}')
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input="to be\n", capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
