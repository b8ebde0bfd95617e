"""How the layers are split over pipeline stages when the split is open: exact, with a bound."""
