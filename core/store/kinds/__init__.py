"""The kinds of state stores: the processor's interface and the topology's declaration of each."""
