"""What no one reads is not computed.

``unread_parts`` is the pass; ``reads`` says what each operator reads for a part of its result.
"""
