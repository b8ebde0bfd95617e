"""What is trained and on what: the boundary models (Pydantic, contract names, human units) and the frozen dataclasses
in base SI units that everything inside works with.
"""
