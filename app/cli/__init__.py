"""The command line.

`main.py` is the way in: it puts the commands together and turns errors into messages and exit codes. `commands/` has one
module per command (`service.py` has `serve`, `db` and `keys`), `inputs.py` and `output.py` are what they read and write,
`rendering/` makes tables and plots of answers for people, and `client.py` talks to a service over HTTP.

Nothing here loads a server, a storage or a solver when it is imported: planning on a login node starts in a fraction of a
second (`tests/e2e/test_light_imports.py` holds this).
"""
