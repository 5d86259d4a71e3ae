"""Attention that reads a share of the pictures: `tiles` is the geometry, `definition` the arithmetic, `backend` what
both methods have in common, `sla_topk` and `vsa` the methods. Experimental, and taken only where asked for by name."""
