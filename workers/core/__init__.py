"""Pure parts of the workers."""
