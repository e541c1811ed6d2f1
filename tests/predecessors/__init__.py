"""The product next to older applications: their documents, stream entries, clients and servers."""
