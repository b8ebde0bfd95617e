"""HTTP: `dependencies.py` and `strict_json.py` are what is read from a request, `schemas.py` and `problems.py` what is sent back,
`middleware.py` what surrounds every request, `openapi.py` and `docs_page.py` the documentation. The routes are in `v1/`.
"""
