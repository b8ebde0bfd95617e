"""What each training framework does, as data: what it keeps in memory, fuses, overlaps and defaults to, by release."""
