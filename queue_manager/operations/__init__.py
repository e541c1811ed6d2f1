"""What operators read and do: the functions that the HTTP API, the pages and the command line share."""
