"""What a whole node of GPUs is measured with, and how it compares with what was predicted."""
