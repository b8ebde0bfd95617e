"""Figures as SVG text, drawn from plain numbers. They need no script, no style attribute and no font of their own."""
