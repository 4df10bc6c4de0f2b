"""Programs of real size, compiled from abstract arrays for a described card."""
