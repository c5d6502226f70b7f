"""llama.cpp in a process of its own, whose Python has llama_cpp and need not have anything else.

It reads lines ``prefill TOKENS`` and ``decode POSITION COUNT``, and answers each with the seconds
of a call: of one thread CPU time, of several the time that passed.
"""

import sys
import time

import llama_cpp


def main() -> None:
    """Load the file of the first argument for the second one's threads, and answer."""
    path, threads = sys.argv[1], int(sys.argv[2])
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, None)
    llama_cpp.llama_backend_init()
    options = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(path.encode(), options)
    options = llama_cpp.llama_context_default_params()
    options.n_ctx = int(sys.argv[3])
    options.n_batch = options.n_ubatch = int(sys.argv[4])
    options.n_threads = options.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, options)
    memory = llama_cpp.llama_get_memory(context)
    clock = time.process_time if threads == 1 else time.perf_counter

    def seconds(tokens: list[int], position: int) -> float:
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, i == len(tokens) - 1
        llama_cpp.llama_memory_seq_rm(memory, 0, position, -1)
        begin = clock()
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama.cpp could not decode")
        llama_cpp.llama_synchronize(context)
        spent = clock() - begin
        llama_cpp.llama_batch_free(batch)
        return spent

    print(llama_cpp.llama_print_system_info().decode().strip(), flush=True)
    for line in sys.stdin:
        what, first, *rest = line.split()
        if what == "prefill":
            found = seconds([5 + i % 1000 for i in range(int(first))], 0)
        else:
            found = min(seconds([7], int(first)) for _ in range(int(rest[0])))
        print(found, flush=True)


if __name__ == "__main__":
    main()
