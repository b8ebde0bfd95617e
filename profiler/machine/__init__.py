"""What this machine is and what state it is in."""
