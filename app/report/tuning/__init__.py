"""The page of a tuning, and what it shares with the command line: `document.py` reads a tuning, `words.py` tells of it, `page.py` shows it."""
