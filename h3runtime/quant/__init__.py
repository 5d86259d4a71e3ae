"""Weight formats: one file per format, each a plain-torch reference of how it packs and unpacks."""
