"""How `h3runtime models` shows what it found.

document   as one JSON object
text       as aligned lines for a person
"""
