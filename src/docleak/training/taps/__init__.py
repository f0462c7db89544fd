"""What a training of somebody else's sends, recorded beside it: it is never ended, and hardly slowed."""
