"""Strategies as structures of arrays: degrees and choices, layers per stage, experts per rank."""
