"""How launch files are written down: documents (JSON, YAML, TOML) and command lines; reading gives settings with their lines."""
