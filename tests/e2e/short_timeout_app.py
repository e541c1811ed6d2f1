"""The product's own application with a visibility timeout of four seconds."""

from __future__ import annotations

from tasks import app

__all__ = ["app"]

app.conf.broker_transport_options["visibility_timeout"] = 4
