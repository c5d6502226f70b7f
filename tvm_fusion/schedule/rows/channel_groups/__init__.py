"""schedule/rows/channel_groups."""
