"""The pure core: no clock, no randomness, no I/O, integers only."""
