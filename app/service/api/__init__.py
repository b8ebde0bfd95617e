"""HTTP: what is read from a request, what is sent back, and the one shape every error has."""
