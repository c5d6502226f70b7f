"""schedule/contraction/back_to_back."""
