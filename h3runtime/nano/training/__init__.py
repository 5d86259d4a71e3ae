"""How h3-nano is trained: data made on the fly, one command, pieces from which a run goes on."""
