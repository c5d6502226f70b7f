"""Products with packed weights in blocks of terms that share a scale.

    for block of a row:  acc[mr][nr] += scale * (sum of its numbers * A)     or unpacked, and that

``weights``         numbers and scales, packed at compile time in lanes of columns
``product``         what they have in common: the problem, its rows, its sums
``floats``          numbers unpacked in vectors, times float32
``bytes``           dot products with rows that are rounded to int8 in blocks
``tiles``, ``tile_operands``   both on tile registers: what they multiply, what they load
``rounded``         many rows on tile registers, both operands rounded to bfloat16
``choice``          which of these, and what it is said to cost
"""
