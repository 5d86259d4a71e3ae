"""How a plan is told: as JSON and as text."""
