"""The machine room of Queue Manager: settings, clock, transport, embedded servers and the command line."""
