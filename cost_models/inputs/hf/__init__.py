"""Hugging Face configs: reading keys with their class defaults, and one table entry per `model_type`."""
