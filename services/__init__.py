"""What the systems mean. Plain Python: time and collaborators come in as arguments, Celery is not known here."""
