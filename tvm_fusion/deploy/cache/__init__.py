"""Artifacts that were compiled before.

``key``     what an artifact depends on, as one name
``folder``  artifacts on disk, bounded in bytes, safe with several processes
"""
