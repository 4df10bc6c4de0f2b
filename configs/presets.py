"""Names that runs are configured by: the embedded pair by role, and the usual meshes."""

TINY_LLAVA = {
    "verifier": "assets/tiny_llava/verifier",
    "drafter": "assets/tiny_llava/drafter",
}
"""Folders of the embedded pair inside the package, by role."""

PAIRS = {"tiny_llava": TINY_LLAVA}

MESHES = {
    "data": {"data": -1, "fsdp": 1, "tensor": 1},
    "fsdp": {"data": 1, "fsdp": -1, "tensor": 1},
}
"""Meshes by name: copies of a small model, or one large model split over all devices."""
