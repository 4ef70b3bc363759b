"""All cases."""

from tests.corpus import features, libraries, repositories

CASES = (*repositories.CASES, *libraries.CASES, *features.CASES)
