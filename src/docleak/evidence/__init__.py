"""Evidence: a run on disk, its numbers, and the report made of them. No torch in here."""
