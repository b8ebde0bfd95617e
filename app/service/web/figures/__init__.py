"""Figures of the served pages, as SVG drawn from plain numbers."""
