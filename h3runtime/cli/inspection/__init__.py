"""How `h3runtime inspect` shows what it found.

document   as one JSON object
text       as short aligned lines for a person
"""
