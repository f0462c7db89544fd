"""Released models and what they say: who was in their training, what they remember, what they are good for."""
