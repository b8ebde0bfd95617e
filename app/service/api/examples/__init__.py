"""What Swagger UI shows: named requests for every call, and answers that the service really gave to the first of them.

`requests.py` holds the requests, `answers.json` the answers, `answers.py` reads them; `python -m scripts.response_examples write`
asks the service again. Tests send every request and compare every answer.
"""
