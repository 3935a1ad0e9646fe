"""The face: command line, configuration, local stack; wires adapters into services."""
