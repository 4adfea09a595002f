"""Tests with engines that hospitals run, each in an environment of its own: `make engines`."""

from importlib.metadata import PackageNotFoundError, version


def lacks(package: str) -> bool:
    """Return whether a package is missing, even where other tests have put stubs in the place of its modules."""
    try:
        version(package)
    except PackageNotFoundError:
        return True
    return False
