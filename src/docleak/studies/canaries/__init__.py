"""The audit in one run: canary providers, each trained on by a coin, and what guesses about them prove."""
