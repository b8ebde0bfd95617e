"""Version 1 of the HTTP contract, one module per kind of object."""
