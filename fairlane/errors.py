"""The root of errors that a user can cause: the command line prints them and exits 2."""


class FairlaneError(Exception):
    """What was asked can't be done; the message names the place and the way out."""
