"""From the documents of a request to a checked, resolved job."""
