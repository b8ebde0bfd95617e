"""What the targets around Hugging Face's modules share: the model's `config.json`, what their training scripts read, and adapters."""
