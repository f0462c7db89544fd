"""Training: objectives, the client's gradient, central pretraining."""
