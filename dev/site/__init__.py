"""The documentation site: `docs/` and pages generated from the code, built by Zensical. `make docs` runs it."""
