#!/bin/sh
# cloudpickle sends a function with lru_cache by its name, also of a module that is registered to go by value.
#
# cloudpickle 3.1.3, which PySpark sends functions with. `register_pickle_by_value(module)` makes functions and classes of
# a module go along whole, for processes that do not have it. A function with `functools.lru_cache` or `cache` is no
# Python function but an object whose own `__reduce__` gives its name. Seen: a plain function of the module runs in a
# process without it, and so does the cached one's `__wrapped__`; the cached one raises ModuleNotFoundError there. Where
# the other process does find the module, it imports a second copy, whose classes are not those that were sent.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet 'cloudpickle==3.1.3'
mkdir "$directory/program" "$directory/elsewhere"
cat > "$directory/program/rates.py" <<'PYTHON'
from functools import lru_cache


def rate(name):
    return len(name)


@lru_cache
def cached(name):
    return rate(name)
PYTHON
cat > "$directory/program/send.py" <<'PYTHON'
import sys

import cloudpickle
import rates

cloudpickle.register_pickle_by_value(rates)
sent = {"plain": rates.rate, "cached": rates.cached, "wrapped": rates.cached.__wrapped__}
sys.stdout.buffer.write(cloudpickle.dumps(sent[sys.argv[1]]))
PYTHON
for each in plain wrapped cached; do
    (cd "$directory/program" && "$directory/venv/bin/python" send.py "$each") > "$directory/elsewhere/$each"
done
cd "$directory/elsewhere"
"$directory/venv/bin/python" - <<'PYTHON'
import pickle


def run(name):
    try:
        with open(name, "rb") as file:
            found = pickle.load(file)("tea")
    except ModuleNotFoundError as error:
        found = f"{type(error).__name__}: {error}"
    print(name, "gives", found)
    return found


assert run("plain") == 3
assert run("wrapped") == 3
assert run("cached") == "ModuleNotFoundError: No module named 'rates'"
PYTHON
