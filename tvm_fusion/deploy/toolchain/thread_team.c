// A team of threads that kernels' parallel loops run on, in place of TVM's pool.
//
// TVM 0.27 gives every worker its part of a loop and waits for all of them: where another library's
// threads hold a core, each loop lasts until the scheduler has let the worker there run. Here the
// parts lie open and are taken:
//
//   caller: opens a job, a share of parts for each thread -> wakes sleepers -> takes parts of its
//           own share, then from the ends of the others' -> waits for parts that a worker has begun
//   worker: takes from the front of its share, which is the same part of a tensor in the next
//           kernel, then from the ends of the others'; yields for a while, then sleeps
//
// So nobody waits for a worker that has not come. Both wait by yielding, as TVM's pool does: next to
// other busy processes, spinning without it made whole models a third slower. The caller soon
// sleeps, which leaves its core to a worker that was stopped in the middle of a part.
//
// A share is one word: generation (32 bits), first open part, end (16 each). Taking is a
// compare-and-swap, which the generation lets fail when the job is another by now; a job is done
// when as many parts have finished as it has, so that what a taker reads of it stays.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// TVM's TVMParallelGroupEnv and FTVMParallelLambda (tvm/runtime/c_backend_api.h, 0.27).
typedef struct {
  void* sync;
  int32_t parts;
} Env;
typedef int (*Body)(int part, Env* env, void* closure);

// tvm_ffi's TVMFFIAny and errors (tvm/ffi/c_api.h).
typedef struct {
  int32_t type_index;
  uint32_t padding;
  int64_t value;
} Any;
enum { INTEGER = 1 };  // kTVMFFIInt
extern void TVMFFIErrorMoveFromRaised(void** error);
extern void TVMFFIErrorSetRaised(void* error);
extern int TVMFFIObjectDecRef(void* object);

// Where this library's kernels find how to launch; absent if it has none.
extern void* __TVMBackendParallelLaunch __attribute__((weak));

enum {
  JOBS = 16,        // callers at a time; another one works alone
  THREADS = 256,    // of a team at most
  GRAIN = 32,       // parts for each thread: more even than one, and few enough to cost nothing
  WAIT_PRIVATE = 0x80,
  WAKE_PRIVATE = 0x81,
};
static const int64_t PATIENCE = 100000;  // nanoseconds that a caller yields for a part, before it sleeps
static const int SPINS = 300000;         // of an idle worker; TVM's default, and by TVM's variable

typedef struct {
  _Alignas(64) _Atomic uint64_t word;
} Share;

typedef struct {
  _Alignas(64) Body body;
  void* closure;
  int32_t parts;
  uint32_t generation;
  _Atomic(void*) error;
  _Atomic int failed;
  _Atomic int is_open;
  _Atomic int shares;
  _Alignas(64) _Atomic uint32_t finished;
  _Atomic uint32_t is_awaited;
  Share share[THREADS];
} Job;

static Job jobs[JOBS];
static _Alignas(64) _Atomic uint32_t epoch;  // of jobs: it changes when one is opened
static _Alignas(64) _Atomic uint32_t sleepers;
static _Atomic int open_jobs;
static _Atomic int size;  // of the team; 0: not started
static atomic_flag is_starting = ATOMIC_FLAG_INIT;
static int spins;
static _Thread_local int is_worker;

static int64_t Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void Relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void Sleep(_Atomic uint32_t* word, uint32_t value) { syscall(SYS_futex, word, WAIT_PRIVATE, value, NULL, NULL, 0); }
static void Wake(_Atomic uint32_t* word, int count) { syscall(SYS_futex, word, WAKE_PRIVATE, count, NULL, NULL, 0); }

// Takes a quarter of what is left, one part at least: few steps at first, an even end.
static int Take(Share* share, int from_front, int* first, int* end) {
  uint64_t word = atomic_load_explicit(&share->word, memory_order_acquire);
  for (;;) {
    int front = (word >> 16) & 0xffff, back = word & 0xffff;
    if (front >= back) return 0;
    int count = (back - front + 3) / 4;
    *first = from_front ? front : back - count;
    *end = *first + count;
    uint64_t left = from_front ? word + ((uint64_t)count << 16) : word - (uint64_t)count;
    if (atomic_compare_exchange_weak(&share->word, &word, left)) return 1;
  }
}

static void Do(Job* job, int first, int end) {
  int parts = job->parts, count = end - first;
  Env env = {NULL, parts};
  for (int part = first; part < end; ++part) {
    if (job->body(part, &env, job->closure) == 0) continue;
    void* error = NULL;
    TVMFFIErrorMoveFromRaised(&error);
    atomic_store(&job->failed, 1);
    error = atomic_exchange(&job->error, error);
    if (error) TVMFFIObjectDecRef(error);
  }
  int before = (int)atomic_fetch_add(&job->finished, (uint32_t)count);
  if (before + count == parts && atomic_load(&job->is_awaited)) Wake(&job->finished, 1);
}

static int Help(Job* job, int thread) {
  int did = 0, shares = atomic_load_explicit(&job->shares, memory_order_relaxed);
  for (int other = 0; other < shares; ++other) {
    int first, end;
    while (Take(&job->share[(thread + other) % shares], other == 0 && thread < shares, &first, &end)) {
      Do(job, first, end);
      did = 1;
    }
  }
  return did;
}

static int HelpAny(int thread) {
  int did = 0;
  if (atomic_load(&open_jobs) == 0) return 0;
  for (int number = 0; number < JOBS; ++number) {
    if (atomic_load(&jobs[number].is_open)) did |= Help(&jobs[number], thread);
  }
  return did;
}

// Whether a job was opened while this worker yielded.
static int OpenedSince(uint32_t seen) {
  for (int i = 0; i < spins && atomic_load(&epoch) == seen; ++i) sched_yield();
  return atomic_load(&epoch) != seen;
}

static void* Worker(void* number) {
  is_worker = 1;
  for (;;) {
    uint32_t seen = atomic_load(&epoch);
    if (HelpAny((int)(intptr_t)number) || OpenedSince(seen)) continue;
    atomic_fetch_add(&sleepers, 1);
    Sleep(&epoch, seen);
    atomic_fetch_sub(&sleepers, 1);
  }
  return NULL;
}

static void AfterForkInChild(void) {  // where no worker is, and no other caller
  for (int number = 0; number < JOBS; ++number) atomic_store(&jobs[number].is_open, 0);
  atomic_store(&open_jobs, 0);
  atomic_store(&sleepers, 0);
  atomic_store(&size, 0);
  atomic_flag_clear(&is_starting);
}

static int Start(void) {
  static int minds_forks;
  const char* count = getenv("TVM_NUM_THREADS");
  if (!count) count = getenv("OMP_NUM_THREADS");
  int threads = count ? atoi(count) : (int)sysconf(_SC_NPROCESSORS_ONLN);
  threads = threads < 1 ? 1 : threads > THREADS ? THREADS : threads;
  const char* asked = getenv("TVM_THREAD_POOL_SPIN_COUNT");
  spins = asked ? atoi(asked) : SPINS;
  if (!minds_forks) minds_forks = pthread_atfork(NULL, NULL, AfterForkInChild) == 0;
  if (!minds_forks) return 1;
  sigset_t all, before;  // signals are the application's, but for those of a fault here
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  sigdelset(&all, SIGFPE);
  sigdelset(&all, SIGILL);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (intptr_t number = 1; number < threads; ++number) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, Worker, (void*)number) != 0) break;  // others do its parts
    pthread_setname_np(thread, "tvm_fusion");
    pthread_detach(thread);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return threads;
}

static int Size(void) {
  int found = atomic_load(&size);
  if (found) return found;
  while (atomic_flag_test_and_set(&is_starting)) sched_yield();
  found = atomic_load(&size);
  if (!found) atomic_store(&size, found = Start());
  atomic_flag_clear(&is_starting);
  return found;
}

static int Alone(Body body, void* closure) {
  Env env = {NULL, 1};
  return body(0, &env, closure);
}

static void Await(Job* job) {
  uint32_t parts = (uint32_t)job->parts, done;
  for (int64_t begin = Now(); Now() - begin < PATIENCE; sched_yield()) {
    for (int i = 0; i < 20; ++i) {
      if (atomic_load(&job->finished) == parts) return;
      Relax();
    }
  }
  atomic_store(&job->is_awaited, 1);
  while ((done = atomic_load(&job->finished)) != parts) Sleep(&job->finished, done);
}

// Runs all parts of a loop whose trips a closure begins with (see ParallelTrips): TVMBackendParallelLaunch.
static int Launch(Body body, void* closure, int asked) {
  (void)asked;  // 0, for as many as there are threads
  int threads = Size();
  if (threads == 1 || is_worker) return Alone(body, closure);
  int64_t trips = *(const int64_t*)closure, parts = threads * GRAIN;
  if (trips == 1) return Alone(body, closure);
  if (trips < parts) {
    parts = trips > 1 ? trips : 1;
  } else {
    int64_t each = (trips + parts - 1) / parts;
    parts = (trips + each - 1) / each;
  }
  Job* job = NULL;
  for (int number = 0; number < JOBS && !job; ++number) {
    int closed = 0;
    if (atomic_compare_exchange_strong(&jobs[number].is_open, &closed, 1)) job = &jobs[number];
  }
  if (!job) return Alone(body, closure);
  int shares = parts < threads ? (int)parts : threads;
  job->body = body;
  job->closure = closure;
  job->parts = (int32_t)parts;
  atomic_store(&job->error, NULL);
  atomic_store(&job->failed, 0);
  atomic_store(&job->finished, 0);
  atomic_store(&job->is_awaited, 0);
  atomic_store(&job->shares, shares);
  uint64_t generation = (uint64_t)++job->generation << 32;
  for (int64_t number = 0; number < shares; ++number) {
    uint64_t first = (uint64_t)(parts * number / shares), end = (uint64_t)(parts * (number + 1) / shares);
    atomic_store(&job->share[number].word, generation | first << 16 | end);
  }
  atomic_fetch_add(&open_jobs, 1);
  atomic_fetch_add(&epoch, 1);
  if (atomic_load(&sleepers)) Wake(&epoch, shares - 1);
  Help(job, 0);
  Await(job);
  void* error = atomic_exchange(&job->error, NULL);
  int failed = atomic_load(&job->failed);
  atomic_fetch_sub(&open_jobs, 1);
  atomic_store(&job->is_open, 0);
  if (error) {
    TVMFFIErrorSetRaised(error);
    TVMFFIObjectDecRef(error);
  }
  return failed ? -1 : 0;
}

// A packed function of one integer: how to launch from now on, as this function told it of another
// library, 0 for its own. One team serves a process; the library whose team it is stays open.
__attribute__((visibility("default"))) int __tvm_ffi_tvm_fusion_thread_team(
    void* self, const Any* arguments, int32_t count, Any* result) {
  (void)self;
  int64_t given = count == 1 && arguments[0].type_index == INTEGER ? arguments[0].value : 0;
  Dl_info here;
  if (!given && dladdr((void*)&Launch, &here)) {
    if (dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE)) given = (int64_t)(intptr_t)&Launch;
  }
  if (given && &__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = (void*)(intptr_t)given;
  result->type_index = INTEGER;
  result->padding = 0;
  result->value = given;  // 0: TVM's pool goes on
  return 0;
}
