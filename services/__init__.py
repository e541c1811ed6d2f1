"""The business logic of the systems. Imports no Celery; time and collaborators are arguments."""
