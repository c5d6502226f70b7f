"""Several workers that run one model, over TVM's disco: worker 0 is a thread of this process.

``executable``
    the model as its user calls it; the session of workers
``processes``
    the other workers' processes, started and watched
``service``
    what a worker does when it is called
``disco``
    TVM's distributed runtime, by its packed functions
``shared_memory``, ``nccl``
    collective libraries: of CPU workers on one machine, and NVIDIA's
``peer_memory``
    memory of GPUs that kernels of other workers write to
``peers``
    shared memory and sockets between workers, which tell when one ends
"""
