"""How the values of made-up checkpoints are chosen, one recipe a component."""
