/* Counts kernel launches: stands before the CUDA driver in the order of symbol lookup. */
#include <dlfcn.h>
#include <stddef.h>

typedef int (*launch_t)(const void *, void *, void **, void **);

static long launches;

long launches_so_far(void) { return launches; }

int cuLaunchKernelEx(const void *config, void *function, void **arguments, void **extra) {
    static launch_t real;
    if (real == NULL) {
        void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
        if (driver != NULL) real = (launch_t)dlsym(driver, "cuLaunchKernelEx");
        if (real == NULL) return 999; /* CUDA_ERROR_UNKNOWN */
    }
    ++launches;
    return real(config, function, arguments, extra);
}
