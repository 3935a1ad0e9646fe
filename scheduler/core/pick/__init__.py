"""The three selectors, each alone in its file; none knows the others."""
