"""Who may come in: limits, publishing, the HTTP API."""
