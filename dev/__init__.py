"""`make up` and the tests: embedded servers, the supervisor of the Procfile, the live demo. Not in the wheel."""
