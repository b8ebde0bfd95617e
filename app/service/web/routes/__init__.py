"""The addresses of the pages, one module per kind of page. None of them is part of the OpenAPI document, which describes the API."""
