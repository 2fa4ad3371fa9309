"""Device meshes, and the rules by which arrays are split over them."""
