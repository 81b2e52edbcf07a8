"""penstock: interfaces, Topology, Task and hooks. Imports the standard library and pluggy, and nothing else of ours."""
