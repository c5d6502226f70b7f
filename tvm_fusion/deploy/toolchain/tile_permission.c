// Asks Linux for AMX's tile registers when the library is opened, whoever opens it: an RPC server, a bench, TVM's own
// loader. The loaders of artifacts ask before and tell a refusal; here it would stop the first kernel with tiles.

#include <sys/syscall.h>
#include <unistd.h>

enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA

__attribute__((constructor)) static void ask(void) {
  syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}
