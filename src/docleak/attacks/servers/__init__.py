"""Active servers: what they do to the model they send, and what they read in the answer."""
