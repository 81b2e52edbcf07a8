"""HandWorld: the world of a simulated host whose time passes, and whose threads work, when a test says so."""

from __future__ import annotations

from penstock.plugins.testing.simulation.host_world import HostWorld, Timeline


class HandWorld(HostWorld):
    """`world` is what the engine gets; all that it gives to threads is done in the test's thread."""

    def __init__(self) -> None:
        timeline = Timeline()
        super().__init__(timeline)
        timeline.on_passing = self.tick
        self.pass_by = timeline.pass_by

    @property
    def now(self) -> float:
        """The seconds of the stopwatch."""
        return self.world.seconds()

    def run_threads(self, pool: str = "") -> None:
        """Do all that was submitted to a pool, or to any."""
        while waiting := [number for number, call in enumerate(self.calls) if pool in ("", call.pool)]:
            self.run(waiting[0])
