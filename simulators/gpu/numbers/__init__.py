"""Number formats of PTX and their rounding, on arrays of bits."""
