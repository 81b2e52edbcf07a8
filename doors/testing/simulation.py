"""The simulator: subclass `SimulationContract` in a test, and it runs your program in histories of crashes."""

from penstock.plugins.testing.simulation import Simulation, SimulationContract, SimulationFailure, simulate

__all__ = ["Simulation", "SimulationContract", "SimulationFailure", "simulate"]
