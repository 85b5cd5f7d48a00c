/* Preloaded library that lets chosen system calls fail on files below $IOFAIL_DIR while the file $IOFAIL_NOW exists.
 *
 * $IOFAIL_CALLS names the calls (write, sync, truncate, read), $IOFAIL_ERRNO the error, and $IOFAIL_SKIP how many
 * matching calls succeed before the first failure of each period in which the file exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int passed;

static int fails(int fd, const char *call) {
    const char *folder = getenv("IOFAIL_DIR"), *now = getenv("IOFAIL_NOW");
    const char *calls = getenv("IOFAIL_CALLS"), *number = getenv("IOFAIL_ERRNO"), *skip = getenv("IOFAIL_SKIP");
    char link[64], path[PATH_MAX];
    int before = errno;
    if (!folder || !now || !calls || !number || !strstr(calls, call)) return 0;
    if (access(now, F_OK) != 0) {
        passed = 0;
        errno = before;
        return 0;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlink, link, path, sizeof path - 1);
    errno = before;
    if (length <= 0) return 0;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder)) != 0 || strstr(path, "-shm") || strstr(path, ".txt")) return 0;
    if (passed++ < (skip ? atoi(skip) : 0)) return 0;
    errno = atoi(number);
    return 1;
}

#define FAILING(type, name, call, parameters, arguments) \
    type name parameters { \
        static type(*real) parameters; \
        if (!real) real = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
        return fails(fd, call) ? -1 : real arguments; \
    }

FAILING(ssize_t, pwrite, "write", (int fd, const void *data, size_t n, off_t at), (fd, data, n, at))
FAILING(ssize_t, pwrite64, "write", (int fd, const void *data, size_t n, off_t at), (fd, data, n, at))
FAILING(ssize_t, write, "write", (int fd, const void *data, size_t n), (fd, data, n))
FAILING(ssize_t, pread, "read", (int fd, void *data, size_t n, off_t at), (fd, data, n, at))
FAILING(ssize_t, pread64, "read", (int fd, void *data, size_t n, off_t at), (fd, data, n, at))
FAILING(int, fsync, "sync", (int fd), (fd))
FAILING(int, fdatasync, "sync", (int fd), (fd))
FAILING(int, ftruncate, "truncate", (int fd, off_t size), (fd, size))
FAILING(int, ftruncate64, "truncate", (int fd, off_t size), (fd, size))
