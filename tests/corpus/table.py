"""All cases."""

from tests.corpus import distributed, features, libraries, repositories

CASES = (*repositories.CASES, *libraries.CASES, *features.CASES, *distributed.CASES)
