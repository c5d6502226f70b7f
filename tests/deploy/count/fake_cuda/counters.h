/* What the counting stand-ins for the CUDA driver and runtime share. */
#ifndef FAKE_CUDA_COUNTERS_H_
#define FAKE_CUDA_COUNTERS_H_

/* Numbers since the last fake_reset. Kernels and copies of a graph count once per graph launch;
 * host_launches are calls of the driver, of which a graph is one. */
struct fake_counters {
  long kernels;
  long host_launches;
  long copies;
  long graph_launches;
  long captures;
};

/* Work recorded between the begin and the end of a stream capture. */
struct fake_graph {
  long kernels;
  long copies;
};

extern struct fake_counters fake_counters;
extern struct fake_graph *fake_capture; /* NULL outside a capture */

extern int fake_guards;

void fake_record_copy(void);

#endif
