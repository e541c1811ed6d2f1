"""The routes of the web process, one package or module for each resource."""
