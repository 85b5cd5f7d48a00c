/* A flight recorder for files, loaded with LD_PRELOAD: what would be left if the power went now?
 *
 * Every change to a file or folder below $POWERCUT_DIR is done as asked, and then written as one record to the journal
 * $POWERCUT_LOG, which lies elsewhere. Nothing is held back here and nothing is killed: disk.py reads the journal and
 * builds, for any moment in it, an image of what a disk may hold after the power went at that moment. So one recorded
 * run answers for hundreds of power cuts.
 *
 * Order. Records are appended by one writev to an O_APPEND file, so the journal is one sequence over all threads and
 * processes. A change is recorded after it is done and before the caller goes on: whoever acts on it comes later in
 * the journal. A change of names can be seen by others before its record is there, so each is made and recorded in
 * one turn, under a lock: what is made in a folder comes after the folder. A sync leaves two records, begin (before) and end (after): it makes durable what was recorded before
 * its begin, and is relied on from its end. That gives a sync no more credit than it has.
 *
 * Memory maps are not seen. SQLite maps its -shm file, which means nothing after a restart and is ignored here; the
 * database itself must not be mapped. Calls that could change files unseen are recorded as unmodelled, and disk.py
 * refuses such a journal.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#undef open
#undef open64
#undef openat
#undef openat64

struct header {
    uint32_t magic;
    uint32_t kind;
    uint64_t thread;
    uint64_t inode;
    uint64_t offset; /* or: new size, or: 1 for a folder */
    uint64_t length; /* of what follows */
};

static char folder[PATH_MAX];
static size_t folder_length;
static char journal_path[PATH_MAX];
static int journal = -1;

static void record(char kind, uint64_t inode, uint64_t offset, const void *data, size_t length) {
    struct header head = {0x50435554u, (uint32_t)kind, (uint64_t)syscall(SYS_gettid), inode, offset, length};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)data, length}};
    int before = errno;
    ssize_t wanted = (ssize_t)(sizeof head + length);
    if (syscall(SYS_writev, journal, parts, length ? 2 : 1) != wanted) {
        static const char text[] = "powercut: the journal cannot be written\n";
        syscall(SYS_write, 2, text, sizeof text - 1);
        abort();
    }
    errno = before;
}

__attribute__((constructor)) static void begin(void) {
    const char *wanted = getenv("POWERCUT_DIR"), *log = getenv("POWERCUT_LOG");
    if (!wanted || !log || !realpath(wanted, folder)) {
        folder[0] = 0;
        return;
    }
    folder_length = strlen(folder);
    snprintf(journal_path, sizeof journal_path, "%s", log);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    /* Out of the way of programs that close low descriptors. */
    journal = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 700);
    if (fd >= 0) syscall(SYS_close, fd);
    if (journal < 0) abort();
}

/* An open file of its own each time, since threads and forked children share the journal's lock. */
static int turn(void) {
    if (journal < 0) return -1;
    int before = errno, failed;
    int held = (int)syscall(SYS_openat, AT_FDCWD, journal_path, O_RDONLY | O_CLOEXEC, 0);
    if (held < 0) abort();
    while ((failed = (int)syscall(SYS_flock, held, LOCK_EX)) != 0 && errno == EINTR) continue;
    if (failed) abort();
    errno = before;
    return held;
}

static void end_turn(int held) {
    if (held < 0) return;
    int before = errno;
    /* Said aloud: a child forked meanwhile has the file open too, and would keep the lock. */
    syscall(SYS_flock, held, LOCK_UN);
    syscall(SYS_close, held);
    errno = before;
}

static int below(const char *path) {
    if (journal < 0 || strncmp(path, folder, folder_length) != 0) return 0;
    if (path[folder_length] != '/' && path[folder_length] != 0) return 0;
    size_t length = strlen(path);
    return !(length > 4 && strcmp(path + length - 4, "-shm") == 0);
}

/* The path of an open file, when it lies below the folder. */
static int watched(int fd, char *path, struct stat *about) {
    char link[64];
    if (journal < 0 || fd < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlink, link, path, PATH_MAX - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    static const char gone[] = " (deleted)";
    if (length > (ssize_t)sizeof gone && strcmp(path + length - (sizeof gone - 1), gone) == 0)
        path[length - (ssize_t)(sizeof gone - 1)] = 0;
    int before = errno;
    int seen = below(path) && fstat(fd, about) == 0;
    errno = before;
    return seen;
}

/* The absolute path of a name, its last part not resolved. */
static int place(int dir, const char *name, char *path) {
    char copy[PATH_MAX], real[PATH_MAX];
    int before = errno;
    if (journal < 0) return 0;
    if (name[0] != '/' && dir != AT_FDCWD) {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        ssize_t length = syscall(SYS_readlink, link, real, PATH_MAX - 1);
        if (length <= 0) return 0;
        real[length] = 0;
        if (snprintf(copy, sizeof copy, "%s/%s", real, name) >= (int)sizeof copy) return 0;
    } else if (snprintf(copy, sizeof copy, "%s", name) >= (int)sizeof copy) {
        return 0;
    }
    char *slash = strrchr(copy, '/');
    const char *parent = ".", *last = copy;
    if (slash) {
        *slash = 0;
        parent = slash == copy ? "/" : copy;
        last = slash + 1;
    }
    char *found = realpath(parent, real);
    errno = before;
    return found && snprintf(path, PATH_MAX, "%s/%s", real, last) < PATH_MAX && below(path);
}

static void unmodelled(int fd, const char *call) {
    char path[PATH_MAX];
    struct stat about;
    if (watched(fd, path, &about)) record('X', about.st_ino, 0, call, strlen(call));
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* Opening creates and truncates. */
static int opened(int fd, int flags, int existed) {
    char path[PATH_MAX];
    struct stat about;
    if (fd < 0 || !(flags & (O_CREAT | O_TRUNC)) || !watched(fd, path, &about)) return fd;
    if (!existed)
        record('C', about.st_ino, 0, path, strlen(path));
    else if (flags & O_TRUNC)
        record('T', about.st_ino, 0, NULL, 0);
    return fd;
}

static int exists(int dir, const char *name, int flags) {
    struct stat about;
    int before = errno;
    int found = !(flags & O_CREAT) || fstatat(dir, name, &about, 0) == 0;
    errno = before;
    return found;
}

static int opening(int dir, const char *file, int flags, mode_t mode) {
    int held = flags & (O_CREAT | O_TRUNC) ? turn() : -1;
    int existed = exists(dir, file, flags);
    int fd = opened((int)syscall(SYS_openat, dir, file, flags, mode), flags, existed);
    end_turn(held);
    return fd;
}

static mode_t mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}

#define OPEN(name) \
    int name(const char *file, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = mode_of(flags, rest); \
        va_end(rest); \
        return opening(AT_FDCWD, file, flags, mode); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    int name(int dir, const char *file, int flags, ...) { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = mode_of(flags, rest); \
        va_end(rest); \
        return opening(dir, file, flags, mode); \
    }
OPENAT(openat)
OPENAT(openat64)

static ssize_t written(int fd, const void *data, ssize_t count, off_t offset) {
    char path[PATH_MAX];
    struct stat about;
    if (count <= 0 || !watched(fd, path, &about) || !S_ISREG(about.st_mode)) return count;
    /* Without an offset it was at the file's position, which is now behind it. */
    if (offset < 0) offset = (off_t)syscall(SYS_lseek, fd, 0, SEEK_CUR) - count;
    record('W', about.st_ino, (uint64_t)offset, data, (size_t)count);
    return count;
}

ssize_t write(int fd, const void *data, size_t count) {
    REAL(write);
    return written(fd, data, real(fd, data, count), -1);
}
ssize_t pwrite(int fd, const void *data, size_t count, off_t offset) {
    REAL(pwrite);
    return written(fd, data, real(fd, data, count, offset), offset);
}
ssize_t pwrite64(int fd, const void *data, size_t count, off_t offset) {
    REAL(pwrite64);
    return written(fd, data, real(fd, data, count, offset), offset);
}

static int resized(int fd, off_t size, int result) {
    char path[PATH_MAX];
    struct stat about;
    if (result == 0 && watched(fd, path, &about)) record('T', about.st_ino, (uint64_t)size, NULL, 0);
    return result;
}

int ftruncate(int fd, off_t size) {
    REAL(ftruncate);
    return resized(fd, size, real(fd, size));
}
int ftruncate64(int fd, off_t size) {
    REAL(ftruncate64);
    return resized(fd, size, real(fd, size));
}

static int synced(int fd, int (*sync)(int)) {
    char path[PATH_MAX];
    struct stat about;
    int seen = watched(fd, path, &about);
    if (seen) record('B', about.st_ino, S_ISDIR(about.st_mode), path, strlen(path));
    int result = sync(fd);
    if (seen && result == 0) record('E', about.st_ino, S_ISDIR(about.st_mode), path, strlen(path));
    return result;
}

int fsync(int fd) {
    REAL(fsync);
    return synced(fd, real);
}
int fdatasync(int fd) {
    REAL(fdatasync);
    return synced(fd, real);
}

static int removed(int dir, const char *name, int flags) {
    char path[PATH_MAX];
    struct stat about;
    int before = errno, held = turn();
    int seen = place(dir, name, path) && lstat(path, &about) == 0;
    errno = before;
    int result = (int)syscall(SYS_unlinkat, dir, name, flags);
    if (seen && result == 0) record('U', about.st_ino, 0, path, strlen(path));
    end_turn(held);
    return result;
}

int unlink(const char *name) { return removed(AT_FDCWD, name, 0); }
int unlinkat(int dir, const char *name, int flags) { return removed(dir, name, flags); }
int remove(const char *name) {
    int result = removed(AT_FDCWD, name, 0);
    return result && errno == EISDIR ? removed(AT_FDCWD, name, AT_REMOVEDIR) : result;
}
int rmdir(const char *name) { return removed(AT_FDCWD, name, AT_REMOVEDIR); }

static int move(int from, const char *old, int to, const char *new) {
    char paths[2 * PATH_MAX], target[PATH_MAX];
    int leaves = place(from, old, paths), arrives = place(to, new, target);
    int result = (int)syscall(SYS_renameat, from, old, to, new);
    if (result != 0 || !(leaves || arrives)) return result;
    if (!leaves || !arrives) {
        record('X', 0, 0, "rename from or to elsewhere", 27);
        return result;
    }
    size_t length = strlen(paths);
    memcpy(paths + length + 1, target, strlen(target));
    record('R', 0, 0, paths, length + 1 + strlen(target));
    return result;
}

static int moved(int from, const char *old, int to, const char *new) {
    int held = turn();
    int result = move(from, old, to, new);
    end_turn(held);
    return result;
}

int rename(const char *old, const char *new) { return moved(AT_FDCWD, old, AT_FDCWD, new); }
int renameat(int from, const char *old, int to, const char *new) { return moved(from, old, to, new); }

static int made(int dir, const char *name, mode_t mode) {
    char path[PATH_MAX];
    struct stat about;
    int held = turn();
    int result = (int)syscall(SYS_mkdirat, dir, name, mode);
    if (result == 0 && place(dir, name, path) && lstat(path, &about) == 0)
        record('M', about.st_ino, 1, path, strlen(path));
    end_turn(held);
    return result;
}

int mkdir(const char *name, mode_t mode) { return made(AT_FDCWD, name, mode); }
int mkdirat(int dir, const char *name, mode_t mode) { return made(dir, name, mode); }

/* What SQLite and Python do not use on a database. Should that change, the journal says so. */
#define UNMODELLED(name, fd, parameters, arguments) \
    ssize_t name parameters { \
        static ssize_t(*real) parameters; \
        if (!real) real = (ssize_t(*) parameters)dlsym(RTLD_NEXT, #name); \
        unmodelled(fd, #name); \
        return real arguments; \
    }
UNMODELLED(writev, fd, (int fd, const struct iovec *v, int n), (fd, v, n))
UNMODELLED(pwritev, fd, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o))
UNMODELLED(pwritev64, fd, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o))
UNMODELLED(pwritev2, fd, (int fd, const struct iovec *v, int n, off_t o, int f), (fd, v, n, o, f))
UNMODELLED(pwritev64v2, fd, (int fd, const struct iovec *v, int n, off_t o, int f), (fd, v, n, o, f))
UNMODELLED(sendfile, out, (int out, int in, off_t *o, size_t n), (out, in, o, n))
UNMODELLED(sendfile64, out, (int out, int in, off_t *o, size_t n), (out, in, o, n))
UNMODELLED(copy_file_range, out, (int in, off_t *i, int out, off_t *o, size_t n, unsigned f), (in, i, out, o, n, f))

#define UNMODELLED_INT(name, parameters, arguments) \
    int name parameters { \
        static int(*real) parameters; \
        if (!real) real = (int(*) parameters)dlsym(RTLD_NEXT, #name); \
        unmodelled(fd, #name); \
        return real arguments; \
    }
UNMODELLED_INT(fallocate, (int fd, int mode, off_t o, off_t n), (fd, mode, o, n))
UNMODELLED_INT(fallocate64, (int fd, int mode, off_t o, off_t n), (fd, mode, o, n))
UNMODELLED_INT(posix_fallocate, (int fd, off_t o, off_t n), (fd, o, n))
UNMODELLED_INT(posix_fallocate64, (int fd, off_t o, off_t n), (fd, o, n))
