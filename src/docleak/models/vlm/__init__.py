"""Vision-language models of ``transformers``: one adapter for all of them, and tiny ones to try it on."""
