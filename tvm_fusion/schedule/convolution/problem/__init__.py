"""A convolution as direct kernels see it.

``problem``                  roles of axes, the image and the constant weight
``image``, ``image_reader``  coordinates of the image and its zero padding; how tiles read it
``groups``                   grouped convolutions as dense ones of a block-diagonal weight
``words``                    channels of narrow types in words of 32 bits, for dot products
``pool``                     pooling in the epilogue
``result_layout``            where output channels lie
``task_loop``                the parallel loop over tasks
"""
