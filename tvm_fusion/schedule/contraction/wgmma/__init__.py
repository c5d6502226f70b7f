"""schedule/contraction/wgmma."""
