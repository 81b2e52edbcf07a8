"""The simulator: your program on hosts that crash, in histories of seeds (`SimulationContract`) or by hand."""

from penstock.plugins.testing.simulation import (
    History,
    SimulatedCluster,
    Simulation,
    SimulationContract,
    SimulationFailure,
    spend,
)

__all__ = ["History", "SimulatedCluster", "Simulation", "SimulationContract", "SimulationFailure", "spend"]
