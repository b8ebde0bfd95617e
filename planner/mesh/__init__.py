"""Where a plan lies: which ranks form which groups, on which nodes and links, and which layers each stage holds."""
