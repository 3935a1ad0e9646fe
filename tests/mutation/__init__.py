"""Mutation testing of the core: `python -m tests.mutation FILE`, see docs/mutation.md."""
