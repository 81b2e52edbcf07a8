"""The kinds of state stores: for each what a processor sees, and how a topology declares one."""
