"""Plans: what a training costs, from the model's numbers alone, with the working shown.

Every function takes plain numbers or quantities and returns quantities (`quantity.py`): the answer,
the formula it comes from with the numbers put in, and who published it.
"""
