"""Whether a page was in an update that a server received."""
