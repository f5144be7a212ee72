"""The commands of the hinge: `diptych parity` and `diptych show`."""
