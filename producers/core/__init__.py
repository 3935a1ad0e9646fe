"""Pure parts of the ingress."""
