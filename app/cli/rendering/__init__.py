"""Answers as people read them: ranked plans (`plan_table.py` over `plan_footer.py`, both of `plan_cells.py`) and calibrations
(`profile_tables.py`, `profile_plots.py`). Human units are made here and nowhere further inside.
"""
