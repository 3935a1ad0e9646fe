"""The outside: one file per foreign thing; only `fairlane` and `simulation` import it."""
