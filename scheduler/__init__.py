"""Who goes next: the pure core, the cycle, recovery."""
