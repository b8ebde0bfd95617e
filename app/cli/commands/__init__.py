"""The commands, one module each: options and arguments, and the calls that answer them."""
