"""Pages about a plan response: figures drawn as SVG, sections that hold them, and the page that a file or the service shows."""
