"""What a user measured, beside what is predicted for it: trial records and observations turned into corrections."""
