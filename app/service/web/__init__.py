"""The pages that the service shows: `routes/` answers them, `form/` turns a filled form into a plan request, `figures/` draws
calibrations, and `templates/` and `static/` hold what a browser gets. The report of a plan comes from `app.report`.

Two rules keep keys safe. A key that a visitor enters lives in a cookie that only the pages read: nothing under `/v1` accepts a
cookie, so that a foreign page cannot make a browser call the API. And every page that changes something refuses a request that
did not come from a page of this service (`visitors.require_own_page`).
"""
