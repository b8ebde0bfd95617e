"""HTTP: `dependencies.py` and `strict_json.py` are what is read from a request, `schemas.py` and `problems.py` what is sent back,
`middleware.py` what surrounds every request, `openapi.py` the document of the API. The routes are in `v1/`.
"""
