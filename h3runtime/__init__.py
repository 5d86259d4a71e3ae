"""A resident runtime for MiniMax H3: one request in, one clip with stereo sound out.

Nothing is imported here, so that the parts which must not load torch can be imported alone.
"""

__version__ = "0.1.0"
