"""What a round trains on: questions and answers, or the pages themselves (self-pretraining)."""
