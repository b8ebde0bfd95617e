"""The form of a plan request: `fields.py` says what each field is, `document.py` makes a request of what was filled in, `values.py`
fills the form from a request, and `checked.py` says what is wrong and what the request resolves to.
"""
