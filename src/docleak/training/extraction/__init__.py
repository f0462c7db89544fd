"""Training token encoders for extraction, and the checkpoints that the game attacks."""
