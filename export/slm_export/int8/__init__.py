"""The int8 decoder: rotated and rounded weights, rows of activations quantised one by one, a measured margin bound."""
