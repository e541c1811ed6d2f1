"""What is shown while pip installs."""

from __future__ import annotations

from dev.install import progress


def test_packages_are_counted_until_they_are_unpacked() -> None:
    lines = [
        "Obtaining file:///queue-manager\n",
        "  Preparing editable metadata (pyproject.toml): started\n",
        "Collecting celery[redis]==5.7.* (from queue-manager==0.2.0)\n",
        "  Downloading celery-5.7.0-py3-none-any.whl (519 kB)\n",
        "Processing /wheels/redis-8.1.0-py3-none-any.whl (from queue-manager==0.2.0)\n",
        "Installing collected packages: redis, celery, queue-manager\n",
    ]
    assert list(progress(lines)) == [
        "downloading package 1",
        "downloading package 2",
        "downloading package 3",
        "unpacking 3 packages",
    ]
