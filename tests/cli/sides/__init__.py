"""Two ways of making one request: `h3runtime.cli.sides`."""
