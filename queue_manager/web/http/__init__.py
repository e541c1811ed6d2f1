"""What every HTTP request and response has in common: errors, bodies, headers, query parameters."""
