"""Toys that tests of several rooms share."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
REPOSITORY = TESTS.parent
SHARED = REPOSITORY.parent / "shared"  # data at hand on the project's machines; tests of it skip elsewhere
