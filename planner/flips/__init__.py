"""Flip conditions: how far off an assumed fact must be for another listed plan to be better than the first."""
