"""Sums in windows of time, as pure functions."""
