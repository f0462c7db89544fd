"""What a finished extraction model's weights tell of fields that were blacked out: CDMI's reconstruction game."""
