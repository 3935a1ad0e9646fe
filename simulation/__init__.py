"""A whole deployment in one thread on a virtual clock, under one seed."""
