r"""A pipe: every record of one topic goes to another. Teaches a topology, an application, and how to run it.

$ penstock topics create lines copies --partitions 2
$ printf 'hello\nworld\n' | penstock produce lines
$ penstock run examples/01_pipe.py:application
$ penstock consume copies
"""

from __future__ import annotations

from penstock import Application, Topology

topology = Topology().add_source("lines", "lines").add_sink("copies", "copies", "lines")

application = Application("pipe", topology)
