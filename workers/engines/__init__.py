"""Engines, one file each."""
