"""What threads do together.

``warp``, ``block_reduce``        reductions over a warp and a block
``lane_moves``, ``anchored_sums`` AMD: reductions without shuffles; sums kept in their loops
"""
