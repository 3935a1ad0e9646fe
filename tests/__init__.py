"""Fairlane's tests, a folder for what each kind needs."""
