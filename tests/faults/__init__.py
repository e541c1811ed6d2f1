"""Random faults in the whole running system, and a check of everything that happened: `python -m tests.faults`."""
