"""The Celery edge: `celery -A tasks worker | beat | flower`. Importing it opens no connection."""

from tasks.app import app

__all__ = ["app"]
