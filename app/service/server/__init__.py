"""The server below the application: how many connections there may be, how long each may take, and what is said to those that may not
stay.
"""
