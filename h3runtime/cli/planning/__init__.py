"""How `h3runtime plan` shows what it found.

document   as one JSON object
text       as aligned lines for a person
"""
