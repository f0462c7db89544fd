"""The study of active servers: what one reads that does not keep to the protocol, and whether the guard lets it."""
