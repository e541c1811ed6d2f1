"""Which site's page sent a request, as far as the browser says. Programs say nothing.

`Sec-Fetch-Site` comes from every current browser, though not over plain HTTP from another machine; then `Origin`
does, with everything but simple reads.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers


def is_from_elsewhere(headers: Headers) -> bool:
    """Tell whether a browser sent this on behalf of another site's page."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    return "origin" in headers and not _is_own_origin(headers)


def is_from_own_page(headers: Headers) -> bool:
    """Tell whether a browser vouches that one of our own pages sent this."""
    site = headers.get("sec-fetch-site")
    return site == "same-origin" if site is not None else _is_own_origin(headers)


def is_link_followed(headers: Headers) -> bool:
    """Tell whether somebody follows a link: the answer is shown to them, and not to the page that linked here."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _is_own_origin(headers: Headers) -> bool:
    try:
        return urlsplit(headers.get("origin", "")).netloc == headers["host"] != ""
    except (KeyError, ValueError):
        return False
