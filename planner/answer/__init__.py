"""From priced strategies to what a user reads: evaluations, ranking, comparison, explanation."""
