"""What operators read and do: the functions that the HTTP API, the pages and the command line share.

They return the responses of the API, and raise errors without a status: `web.http.exception_handlers` has the statuses.
"""
