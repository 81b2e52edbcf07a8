"""`python -m tests.kafka.few_files HOST:PORT` opens a log with fewer and fewer files left, and prints what each try
failed with."""

from __future__ import annotations

import os
import resource
import sys

from penstock.plugins.logs.kafka.log import KafkaLog


def main(bootstrap: str) -> None:
    """Try it with 14 free numbers for files down to one."""
    used = set(map(int, os.listdir("/dev/fd")))
    free = [number for number in range(max(used) + 40) if number not in used]
    for spare in range(14, 0, -1):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], free[spare]))
        try:
            KafkaLog(bootstrap, {"task.timeout.ms": "400"}).topics()
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
