"""The program of `meshwright agent`: asks a service for measurements and trials, runs them in another process, and sends what was found."""
