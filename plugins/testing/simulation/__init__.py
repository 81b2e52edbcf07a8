"""The simulator: a program on several hosts over a simulated log, in a history of steps and faults from one seed."""

from penstock.support.packages import needed

with needed("penstock.testing.simulation", "testing"):
    from .contract import SimulationContract
    from .history import History
    from .host import spend
    from .host_world import SimulationFailure
    from .simulated_cluster import SimulatedCluster
    from .simulation import Simulation

__all__ = ["History", "SimulatedCluster", "Simulation", "SimulationContract", "SimulationFailure", "spend"]
