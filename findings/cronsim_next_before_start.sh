#!/bin/sh
# cronsim 2.8 is iterated from a start, and what it gives first is understood to come after that start. In the second
# of two hours that come twice, as clocks are put back, it is not: from 02:10 of the second hour, "30 2 * * *" gives
# 02:30 of the first hour, 40 minutes before the start. A scheduler that asks for the next time after "now" so gets one
# that is over, and calls its job a second time. The time after it is right, so skip what is not after the start.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet cronsim==2.8 tzdata==2025.2
cat > "$directory/main.py" <<'PYTHON'
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

from cronsim import CronSim

start = datetime(2026, 10, 25, 2, 10, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
times = CronSim("30 2 * * *", start)
first, second = next(times), next(times)
minutes = (first.astimezone(timezone.utc) - start.astimezone(timezone.utc)).total_seconds() / 60
print(f"start {start}, first {first}: {minutes:+.0f} minutes, then {second}")
assert (minutes, str(second)) == (-40, "2026-10-26 02:30:00+01:00"), "cronsim behaves differently now"
PYTHON
"$directory/venv/bin/python" "$directory/main.py"
# Seen: start 2026-10-25 02:10:00+01:00, first 2026-10-25 02:30:00+02:00: -40 minutes, then 2026-10-26 02:30:00+01:00
