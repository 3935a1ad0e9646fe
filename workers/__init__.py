"""Who does the work: lanes, engines, results."""
