/* NCCL between processes: one file in /dev/shm by the communicator's name, a barrier, float32. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS = 4, SLOT = 1 << 16, ABORTED = 7 };
typedef struct { char internal[128]; } Id;
typedef struct {
  pthread_barrier_t barrier;
  int ready;
  float slots[RANKS][SLOT];
} Shared;
typedef struct { Shared *shared; int rank, size; } Comm;

void *last_stream;   /* of the last collective */
int aborted, fail_next;
static void *group[8][4];
static int grouped = -1;

int ncclGetVersion(int *version) { *version = 22803; return 0; }
const char *ncclGetErrorString(int code) { (void)code; return "unhandled cuda error"; }
int ncclGetUniqueId(Id *id) {
  memset(id, 0, sizeof *id);
  snprintf(id->internal, sizeof id->internal, "/dev/shm/fake-nccl-%d", getpid());
  int file = open(id->internal, O_RDWR | O_CREAT, 0600);
  if (ftruncate(file, sizeof(Shared))) return 1;
  close(file);
  return 0;
}
int ncclCommInitRank(Comm **made, int size, Id id, int rank) {
  static Comm comm;
  int file = open(id.internal, O_RDWR);
  comm.shared = mmap(0, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  comm.rank = rank, comm.size = size;
  if (rank == 0) {
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&comm.shared->barrier, &attributes, size);
    __atomic_store_n(&comm.shared->ready, 1, __ATOMIC_RELEASE);
  }
  while (!__atomic_load_n(&comm.shared->ready, __ATOMIC_ACQUIRE)) usleep(100);
  pthread_barrier_wait(&comm.shared->barrier);
  if (rank == 0) unlink(id.internal);
  *made = &comm;
  return 0;
}
int ncclCommAbort(Comm *comm) { (void)comm; aborted = 1; return 0; }
int ncclCommDestroy(Comm *comm) { (void)comm; return 0; }

static int share(const float *send, size_t count, int type, Comm *comm, void *stream) {
  if (type != 7 || fail_next) return 1;
  last_stream = stream;
  if (send) memcpy(comm->shared->slots[comm->rank], send, 4 * count);
  pthread_barrier_wait(&comm->shared->barrier);
  return 0;
}
int ncclAllReduce(const float *send, float *recv, size_t count, int type, int op, Comm *comm, void *stream) {
  int code = share(send, count, type, comm, stream);
  for (size_t i = 0; !code && i < count; i++) {
    float total = comm->shared->slots[0][i];
    for (int r = 1; r < comm->size; r++) {
      float x = comm->shared->slots[r][i];
      total = op == 2 ? (x > total ? x : total) : op == 3 ? (x < total ? x : total) : op == 1 ? total * x : total + x;
    }
    recv[i] = op == 4 ? total / comm->size : total;
  }
  if (!code) pthread_barrier_wait(&comm->shared->barrier);
  return code;
}
int ncclAllGather(const float *send, float *recv, size_t count, int type, Comm *comm, void *stream) {
  int code = share(send, count, type, comm, stream);
  for (int r = 0; !code && r < comm->size; r++) memcpy(recv + r * count, comm->shared->slots[r], 4 * count);
  if (!code) pthread_barrier_wait(&comm->shared->barrier);
  return code;
}
int ncclBroadcast(const float *send, float *recv, size_t count, int type, int root, Comm *comm, void *stream) {
  int code = share(comm->rank == root ? send : 0, count, type, comm, stream);
  if (!code) memcpy(recv, comm->shared->slots[root], 4 * count);
  if (!code) pthread_barrier_wait(&comm->shared->barrier);
  return code;
}
/* Sends lie in the receiver's slot, behind each other by the sender; only within groups. */
static Comm *last;
static int add(void *at, size_t count, int peer, int sends, Comm *comm, void *stream) {
  last = comm, last_stream = stream;
  group[grouped][0] = at, group[grouped][1] = (void *)count;
  group[grouped][2] = (void *)(size_t)peer, group[grouped++][3] = (void *)(size_t)sends;
  return 0;
}
int ncclSend(void *at, size_t count, int type, int peer, Comm *comm, void *stream) {
  return type == 7 && grouped >= 0 ? add(at, count, peer, 1, comm, stream) : 1;
}
int ncclRecv(void *at, size_t count, int type, int peer, Comm *comm, void *stream) {
  return type == 7 && grouped >= 0 ? add(at, count, peer, 0, comm, stream) : 1;
}
int ncclGroupStart(void) { grouped = 0; return 0; }
int ncclGroupEnd(void) {
  for (int pass = 1; pass >= 0; pass--) {
    for (int i = 0; i < grouped; i++) {
      int peer = (int)(size_t)group[i][2], sends = (int)(size_t)group[i][3];
      if (sends != pass) continue;
      size_t count = (size_t)group[i][1];
      if (sends) memcpy(last->shared->slots[peer] + last->rank * count, group[i][0], 4 * count);
      else memcpy(group[i][0], last->shared->slots[last->rank] + peer * count, 4 * count);
    }
    pthread_barrier_wait(&last->shared->barrier);
  }
  grouped = -1;
  return 0;
}
