"""The sections of the pages, one module each: what a section says, and the figure that shows it."""
