"""Weight formats: one file per format, each a plain-torch reference of how it packs and unpacks.

`stored` names what a file holds. `tiles` (order of block scales), `rotation` (ConvRot), `nibbles` (4-bit codes) and
`slices` (rows at a time) are what several formats share.
"""
