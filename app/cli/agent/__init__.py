"""The program of `meshwright agent`: asks a service for measurements, makes them in another process, and sends what was found."""
